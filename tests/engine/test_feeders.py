"""Feeders: ahead of the consumer, in order, bounded, and gone when closed."""

import itertools
import threading

import pytest

from headrace.engine.feeders import Feeders


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("headrace-feeder")]


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_items_come_in_the_order_of_their_iterator(threads):
    iterators = [iter(range(50)), iter(range(100, 150)), iter(range(200, 250))]
    with Feeders(iterators, depth=3, threads=threads) as feeders:
        for i in range(50):
            assert [feeders.take(which) for which in (2, 0, 1)] == [200 + i, i, 100 + i]
        for which in range(3):
            with pytest.raises(StopIteration):
                feeders.take(which)
    assert not ours()


def test_no_more_than_depth_items_are_made_ahead():
    made = []
    full = threading.Event()

    def items():
        for i in itertools.count():
            made.append(i)
            if i == 3:
                full.set()
            yield i

    with Feeders([items()], depth=2) as feeders:
        feeders.wait_ready(1)
        assert feeders.take(0) == 0
        assert feeders.take(0) == 1
        full.wait(5)
        assert len(made) == 4
        assert sum(feeders.statistics().ready) <= 2


def test_it_waits_until_enough_iterators_are_ready():
    gate = threading.Event()

    def late():
        gate.wait(5)
        yield "late"

    with Feeders([iter("a"), late()], depth=1) as feeders:
        feeders.wait_ready(1)
        assert feeders.statistics().ready[1] == 0
        gate.set()
        feeders.wait_ready(2)
        assert feeders.statistics().ready[1] == 1


def test_an_error_reaches_the_consumer_after_the_items_before_it():
    def failing():
        yield 1
        raise OSError("the disk is gone")

    with Feeders([failing(), itertools.count()], depth=2) as feeders:
        assert feeders.take(0) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            feeders.take(0)
        assert feeders.take(1) == 0


def test_closing_ends_threads_that_wait_for_room_and_frees_a_waiting_consumer():
    feeders = Feeders([itertools.count() for _ in range(5)], depth=1)
    feeders.wait_ready(5)
    assert len(ours()) == 5
    assert feeders.close()
    assert not ours()
    with pytest.raises(StopIteration):
        feeders.take(0)


def test_closing_says_when_an_iterator_does_not_return():
    gate = threading.Event()

    def stuck():
        gate.wait(10)
        yield 1

    feeders = Feeders([stuck()], depth=1)
    assert not feeders.close(timeout=0.05)
    gate.set()
    assert feeders.close()
