"""The clock of a loop: steps, waits, warm-up and pauses."""

from headrace.measure.clock import StepClock


def test_steps_and_waits_are_counted_without_the_warm_up():
    clock = StepClock(warmup=2)
    steps = []
    for now, waited in [(10, 5), (11, 0.5), (14, 1.0), (16, 0.5)]:
        clock.waited(waited)
        steps.append(clock.end(4, now=now))
    assert [step.step_s for step in steps] == [0.0, 0.5, 2.0, 1.5]
    assert [step.warmup for step in steps] == [True, True, False, False]
    assert (clock.ended, clock.steps, clock.samples) == (4, 2, 8)
    assert (clock.seconds, clock.wait_s) == (5.0, 1.5)


def test_the_warm_up_lasts_as_long_as_the_longer_of_its_limits():
    clock = StepClock(warmup=2, warmup_s=5.0)
    for now in (0.0, 1.0, 2.0, 5.5, 6.0):
        clock.end(1, now=now)
    assert (clock.warm, clock.steps) == (True, 1)


def test_a_clock_that_was_begun_counts_its_first_step():
    clock = StepClock()
    clock.begin(now=2.0)
    assert clock.end(now=5.0).seconds == 3
    assert clock.steps == 1
    clock.clear()
    clock.begin(now=7.0)  # two seconds that are not part of a step
    clock.end(now=8.0)
    assert clock.seconds == 1


def test_pauses_are_not_part_of_a_step():
    clock = StepClock(warmup=1)
    clock.skip(5.0)  # before the first step there is nothing to take from
    clock.end(now=0.0)
    clock.skip(9.0)
    assert clock.end(now=10.0).seconds == 1.0
    assert clock.end(now=12.0).seconds == 2.0
    with clock.paused(), clock.paused():
        clock.resume()  # of a callback inside
        clock.pause()
    assert clock.end(now=13.0).seconds <= 1.0


def test_waits_can_be_read_from_a_counter():
    total = 4.0
    clock = StepClock(waits=lambda: total)
    clock.begin(now=0.0)
    total = 4.5
    assert clock.end(now=2.0).wait_s == 0.5
    total = 4.75
    assert clock.end(now=3.0).step_s == 0.75
    assert (clock.seconds, clock.wait_s) == (3.0, 0.75)
