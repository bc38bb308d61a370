"""Copies one ahead, without a device: whatever copies, slots are held exactly as long as it does.

The real copies are in `test_torch_cuda.py`.
"""

import gc

import numpy as np
import pytest

from headrace.outputs.torch.device import Ahead


class Host:
    """Batches 0, 1, 2, ... of a source, of which some are ready."""

    def __init__(self, ready=0, fails_at=None):
        self.ready, self.fails_at, self.given, self.alive = ready, fails_at, 0, set()

    def __next__(self):
        if self.given == self.fails_at:
            raise ValueError(f"batch {self.given} is damaged")
        self.ready = max(0, self.ready - 1)
        self.given += 1
        return Lease(self, self.given - 1)


class Lease:
    """A host's batch, alive until it is let go."""

    def __init__(self, host, number):
        self.host, self.number = host, number
        host.alive.add(number)

    def __del__(self):
        self.host.alive.discard(self.number)


class Copy:
    """A copy that is over when it is told so, or waited for."""

    def __init__(self, batch, log):
        self.number, self.over, self.log = batch.number, False, log

    def done(self):
        return self.over

    def wait(self):
        self.log.append(self.number)
        self.over = True

    def take(self):
        return self.number


@pytest.fixture
def copies():
    return []


@pytest.fixture
def waited():
    return []


def feed(host, copies, waited):
    def send(batch):
        copies.append(Copy(batch, waited))
        return copies[-1]

    return Ahead(host, send)


def test_the_first_batch_does_not_wait_for_the_second(copies, waited):
    host = Host(ready=0)
    batches = feed(host, copies, waited)
    assert next(batches) == 0
    assert (host.given, batches.ahead, waited) == (1, 0, [])


def test_the_next_copy_is_ordered_when_a_batch_is_handed_out(copies, waited):
    host = Host(ready=5)
    batches = feed(host, copies, waited)
    for number in range(4):
        assert next(batches) == number
        assert (host.given, batches.ahead) == (number + 2, 1)
        copies[-1].over = True


def test_a_batch_is_held_until_its_copy_is_over_and_no_longer(copies, waited):
    host = Host(ready=0)
    batches = feed(host, copies, waited)
    next(batches)
    assert host.alive == {0}
    host.ready = 1
    assert next(batches) == 1  # needs a slot: the running copy is waited for first
    assert waited == [0]
    assert host.alive == {1}
    copies[-1].over = True
    assert next(batches) == 2
    assert waited == [0]  # over already: not waited for
    assert host.alive == {2}


def test_at_most_one_batch_is_held_for_copies(copies, waited):
    host = Host(ready=10**6)
    batches = feed(host, copies, waited)
    for _ in range(20):
        next(batches)
        assert len(host.alive) == 1


def test_closing_and_letting_go_wait_for_the_running_copy(copies, waited):
    host = Host(ready=2)
    batches = feed(host, copies, waited)
    next(batches)
    batches.close()
    assert (waited, host.alive, batches.ahead) == ([0, 1], set(), 0)
    next(batches)  # continues after a close: a state may have been loaded
    waited.clear()
    assert host.alive == {2}
    del batches
    gc.collect()
    assert (waited, host.alive) == ([2], set())


def test_an_error_of_the_next_batch_comes_in_its_turn(copies, waited):
    batches = feed(Host(ready=9, fails_at=2), copies, waited)
    assert [next(batches), next(batches)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="batch 2 is damaged"):
            next(batches)


def test_a_batch_that_could_not_be_sent_is_sent_again_and_not_lost(copies, waited):
    host, full = Host(ready=9), [False]

    def send(batch):
        if full[0]:
            raise MemoryError("the device is full")
        return Copy(batch, waited)

    batches = Ahead(host, send)
    assert next(batches) == 0
    full[0] = True
    assert next(batches) == 1
    assert batches.ahead == 1  # taken, and counted as not consumed
    with pytest.raises(MemoryError):
        next(batches)
    full[0] = False
    assert np.array([next(batches) for _ in range(3)]).tolist() == [2, 3, 4]
