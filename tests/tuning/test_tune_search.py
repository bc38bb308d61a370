"""The search on made-up response surfaces: what it finds, keeps, leaves alone and proves."""

import random
from importlib.util import find_spec

import pytest

from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Knob
from headrace.tuning.attempt import Attempt
from headrace.tuning.search import Space, TimeBudget, search
from headrace.tuning.search.judge import Rules
from headrace.tuning.search.optuna_sampler import OptunaTpe
from headrace.tuning.search.sampler import Neighbours
from headrace.tuning.search.space import Failures

KNOBS = tuple(Knob(f"b.k{n}", (1, 2, 3)) for n in range(6))
SPACE = Space(KNOBS, {knob.key: 0 for knob in KNOBS})
SAMPLERS = [
    Neighbours,
    pytest.param(
        OptunaTpe,
        marks=pytest.mark.skipif(not find_spec("optuna"), reason="optuna is not installed"),
    ),
]


class Surface:
    """Answers by a function of the options; every run takes ten seconds of a made-up clock."""

    def __init__(self, rate, *, noise=0.0, drift=0.0, seed=0, takes=10.0):
        self.rate, self.noise, self.drift, self.takes = rate, noise, drift, takes
        self.random = random.Random(seed)
        self.time = 0.0
        self.asked = []

    def __call__(self, changes, name, number, left_s):
        self.asked.append((dict(changes), name, number))
        found = self.rate({knob.key: changes.get(knob.key, 0) for knob in KNOBS} | dict(changes))
        self.time += self.takes
        if isinstance(found, Attempt):
            return found
        found *= self.random.uniform(1 - self.noise, 1 + self.noise) + self.drift * self.time
        return Attempt("pass", samples_per_s=found, wall_s=self.takes)

    def budget(self, minutes):
        return TimeBudget(60 * minutes, clock=lambda: self.time)


def run(surface, *, minutes=60.0, space=SPACE, sampler=None, **more):
    return search(space, surface, surface.budget(minutes), sampler, **more)


def test_the_ladder_keeps_what_is_faster_and_goes_on_from_there():
    surface = Surface(lambda o: 100 * (1.2 if o["b.k1"] == 2 else 1) * (1 + 0.1 * o["b.k4"]))
    found = run(surface)
    assert found.best == found.winner == {"b.k1": 2, "b.k4": 3}
    assert found.proved
    assert found.proof.ratio == pytest.approx(1.2 * 1.3)
    assert (found.ended, found.sampler) == ("all tried", None)
    kept = [
        (step.key, tried.difference) for step in found.steps for tried in step.tried if tried.kept
    ]
    assert kept == [("b.k1", {"b.k1": 2}), ("b.k4", {"b.k4": 3})]
    # What came after k1 was tried on top of it.
    assert all(t.changes["b.k1"] == 2 for step in found.steps[2:] for t in step.tried)


def test_every_candidate_runs_in_a_round_of_its_own_incumbent():
    surface = Surface(lambda o: 100 + 10 * (o["b.k0"] == 2))
    run(surface)
    first = [(changes, number) for changes, name, number in surface.asked[:8]]
    assert first == [
        ({}, 0),
        ({"b.k0": 1}, 0),
        ({"b.k0": 2}, 0),
        ({"b.k0": 3}, 0),
        # Only what looks better is run again, in turns with what it must beat.
        ({"b.k0": 2}, 1),
        ({}, 1),
        ({}, 2),
        ({"b.k0": 2}, 2),
    ]
    assert surface.asked[8][0] == {"b.k0": 2}  # the next step's incumbent


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_never_becomes_a_gain(seed):
    found = run(Surface(lambda o: 100, noise=0.06, seed=seed))
    assert not found.proved
    assert found.winner == {}


def test_a_gain_below_what_matters_is_not_kept():
    found = run(Surface(lambda o: 100 + 2.5 * (o["b.k2"] == 1)))
    assert found.best == {}
    tried = found.steps[2].tried[0]
    assert (tried.contrast.ratio, tried.kept) == (pytest.approx(1.025), False)


@pytest.mark.parametrize("drift", [0.0005, -0.0002])
def test_a_machine_that_drifts_neither_feigns_nor_hides_a_gain(drift):
    assert run(Surface(lambda o: 100, drift=drift)).winner == {}
    found = run(Surface(lambda o: 100 + 20 * (o["b.k3"] == 1), noise=0.01, drift=drift))
    assert found.winner == {"b.k3": 1}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_optimum_that_needs_two_changes_at_once_is_found_by_the_sampler(sampler):
    def rate(o):
        return 100 * (1.5 if o["b.k2"] == 1 and o["b.k5"] == 3 else 1)

    assert run(Surface(rate)).winner == {}  # the ladder cannot see it
    # Blind neighbours need more samples than TPE, which is slower at choosing them.
    minutes = 240 if sampler is Neighbours else 60
    found = run(Surface(rate, noise=0.01), minutes=minutes, sampler=sampler(SPACE))
    assert found.winner == {"b.k2": 1, "b.k5": 3}
    assert found.proof.ratio == pytest.approx(1.5, rel=0.05)
    assert found.sampler == sampler.name


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_values_that_failed_are_rows_and_never_tried_again(sampler):
    died = Attempt("oom-killed", "killed (SIGKILL): out of memory")

    def rate(o):
        both = o["b.k2"] and o["b.k3"]
        if o["b.k0"] == 3 or both:
            return died
        return 100 * (1.3 if o["b.k1"] == 1 else 1)

    surface = Surface(rate)
    found = run(surface, minutes=25, sampler=sampler(SPACE))
    assert found.winner == {"b.k1": 1}
    failed = [t for step in found.steps for t in step.tried if t.status == "oom-killed"]
    assert failed[0].difference == {"b.k0": 3}
    assert failed[0].cause == died.cause
    assert sum(changes.get("b.k0") == 3 for changes, _, _ in surface.asked) == 1
    dead = [tuple(c.items()) for c, _, _ in surface.asked if c.get("b.k2") and c.get("b.k3")]
    assert dead  # it did try such pairs
    assert len(set(dead)) == len(dead)


def test_what_the_backend_refuses_is_pruned_before_it_runs():
    def check(changes):
        if changes.get("b.k1", 0) > changes.get("b.k0", 0):
            raise UsageError("b.k1 is above b.k0")

    surface = Surface(lambda o: 100 + 30 * o["b.k1"])
    space = Space(KNOBS[:2], SPACE.start, check)
    found = run(surface, space=space, minutes=20, sampler=Neighbours(space))
    assert all(check(changes) is None for changes, _, _ in surface.asked)
    assert {t.status for t in found.steps[1].tried} == {"invalid configuration"}
    assert found.winner == {"b.k0": 3, "b.k1": 3}


def test_options_that_go_together_are_changed_together():
    knobs = (
        Knob("b.calls", (8,), along={"b.length": 8}),
        Knob("b.length", (8, 16)),
        Knob("b.queue", (4,), needs={"b.mode": "python"}),
        Knob("b.mode", ("python",)),
    )
    space = Space(knobs, {"b.calls": 1, "b.length": 1, "b.queue": 2, "b.mode": "sample"})
    assert space.steps(knobs[0], {}) == [{"b.calls": 8, "b.length": 8}]
    assert space.steps(knobs[0], {"b.length": 16}) == [{"b.calls": 8, "b.length": 16}]
    # A knob that another moved can go back.
    assert {"b.calls": 8} in space.steps(knobs[1], {"b.calls": 8, "b.length": 8})
    assert space.steps(knobs[2], {}) == []
    assert space.steps(knobs[2], {"b.mode": "python"}) == [{"b.queue": 4, "b.mode": "python"}]
    assert space.chosen({"b.calls": 8, "b.length": 1, "b.queue": 4, "b.mode": "sample"}) == {
        "b.calls": 8,
        "b.length": 8,
    }


def test_no_run_begins_that_would_not_fit_the_time():
    surface = Surface(lambda o: 100 * (1.2 if o["b.k0"] == 1 else 1))
    found = run(surface, minutes=4)
    assert found.ended == "time"
    assert surface.time <= 240
    assert found.proved  # the proof's runs were kept in reserve
    assert len(found.steps) < len(KNOBS)


def test_without_time_for_anything_nothing_runs():
    surface = Surface(lambda o: 100)
    budget = TimeBudget(30, expected_s=10, clock=lambda: surface.time)
    found = search(SPACE, surface, budget, None)
    assert (found.ended, found.runs, found.winner) == ("time", 0, {})


@pytest.mark.parametrize(("after", "best"), [(0, {}), (20, {"b.k0": 1}), (30, {"b.k0": 1})])
def test_an_interrupted_search_keeps_the_best_so_far(after, best):
    surface = Surface(lambda o: 100 * (1.2 if o["b.k0"] == 1 else 1))

    def evaluate(*question):
        if len(surface.asked) == after:
            return Attempt("interrupted", "interrupted (Ctrl-C)")
        return surface(*question)

    found = search(SPACE, evaluate, surface.budget(60), None)
    assert (found.ended, found.winner) == ("interrupted", best)
    assert not found.proved
    assert found.unproved == bool(best)


class Ledger:
    """Remembers answers, as the real evaluation does; may be interrupted."""

    def __init__(self, surface):
        self.surface, self.answers, self.left = surface, {}, -1

    def __call__(self, changes, name, number, left_s):
        key = (tuple(changes.items()), name, number)
        if key not in self.answers:
            if self.left == 0:
                return Attempt("interrupted", "interrupted (Ctrl-C)")
            self.left -= 1
            self.answers[key] = self.surface(changes, name, number, left_s)
        return self.answers[key]

    def knows(self, changes, name, number):
        return (tuple(changes.items()), name, number) in self.answers

    def search(self, minutes, sampler=None):
        budget = self.surface.budget(minutes)
        return search(SPACE, self, budget, sampler, known=self.knows)


def test_the_same_answers_lead_to_the_same_questions_so_a_search_can_go_on():
    def rate(o):
        return 100 * (1.2 if o["b.k0"] == 1 else 1) * (1.3 if o["b.k4"] == o["b.k5"] == 2 else 1)

    ledger = Ledger(Surface(rate, noise=0.02))
    first = ledger.search(6, Neighbours(SPACE))
    assert first.ended == "time"
    assert len(first.steps) > 3
    made = len(ledger.answers)
    # With no time at all, what is known is found again, to the proof.
    assert ledger.search(0.001, Neighbours(SPACE)) == first
    assert len(ledger.answers) == made
    again = ledger.search(120, Neighbours(SPACE))
    assert again.steps[: len(first.steps) - 1] == first.steps[:-1]
    assert again.winner == {"b.k0": 1, "b.k4": 2, "b.k5": 2}
    assert len(ledger.answers) > made
    assert again.runs >= len(ledger.answers) - 6  # only the first proof was of another winner


def test_a_round_that_was_cut_off_is_taken_anew_on_the_machine_as_it_is_then():
    # Twice as fast after the interruption: half a round of each would show a gain.
    ledger = Ledger(Surface(lambda o: 100 if len(surface.asked) <= 6 else 200))
    surface = ledger.surface
    ledger.left = 6  # in the middle of the second option
    assert ledger.search(60).ended == "interrupted"
    ledger.left = -1
    found = ledger.search(60)
    assert found.ended == "all tried"
    assert found.best == {}
    ratios = {t.contrast.ratio for step in found.steps for t in step.tried}
    assert ratios == {1.0}
    made = len(ledger.answers)
    assert ledger.search(60) == found
    assert len(ledger.answers) == made


def test_if_the_start_cannot_run_whatever_runs_is_better():
    def rate(o):
        return 80 if o["b.k1"] == 2 else Attempt("floor reached", "4.9 GiB left")

    found = run(Surface(rate))
    assert (found.start_status, found.winner, found.proved) == ("floor reached", {"b.k1": 2}, True)
    nothing = run(Surface(lambda o: Attempt("floor reached", "4.9 GiB left")))
    assert (nothing.start_status, nothing.winner) == ("floor reached", {})


def test_a_start_that_is_broken_ends_the_search_at_once():
    surface = Surface(lambda o: Attempt("failed", "no catalog"))
    found = run(surface)
    assert (found.ended, found.cause, len(surface.asked)) == (
        "nothing runs",
        "failed: no catalog",
        1,
    )


def test_a_best_that_dies_in_its_proof_is_not_the_winner():
    surface = Surface(lambda o: 100 * (1.2 if o["b.k0"] == 1 else 1))

    def evaluate(changes, name, number, left_s):
        if name.startswith("proof") and changes:
            return Attempt("floor reached", "4.9 GiB left")
        return surface(changes, name, number, left_s)

    found = search(SPACE, evaluate, surface.budget(60), None)
    assert (found.best, found.winner, found.proof_status) == ({"b.k0": 1}, {}, "floor reached")


def test_stricter_rules_keep_less():
    surface = Surface(lambda o: 100 * (1.04 if o["b.k0"] == 1 else 1))
    assert run(surface).winner == {"b.k0": 1}
    assert run(surface, rules=Rules(keep=1.05)).winner == {}


def test_failures_hold_for_everything_that_contains_them():
    failures = Failures()
    failures.add({"a": 1, "b": 2})
    assert failures.hold({"a": 1, "b": 2, "c": 3})
    assert not failures.hold({"a": 1, "b": 3})
