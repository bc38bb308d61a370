"""The threads: order, budget, stopping. Gates instead of sleeps."""

import gc
import multiprocessing
import queue
import threading

import numpy as np
import pytest

from headrace.engine.engine import Engine, TaskQueue
from headrace.engine.slots import ArraySpec, Budget, SlotPool
from headrace.errors import BudgetError, UsageError

SPECS = {"x": ArraySpec((8,), "int64"), "y": ArraySpec((3, 5), "uint8")}
SLOT = 64 + 64


class Numbers:
    """Batches of eight tasks; task t of batch b writes 8 * b + t."""

    def __init__(self, stop=None):
        self.next, self.stop = 0, stop

    def __next__(self):
        if self.next == self.stop:
            raise StopIteration
        number = self.next
        self.next += 1
        return number, [(number, t) for t in range(8)]


def plain(counters):
    def work(task, arrays, place):
        number, t = task
        arrays["x"][t] = 8 * number + t
        counters.images += 1

    return work


class Does:
    """A worker that calls a function."""

    def __init__(self, function):
        self.function, self.closed = function, False

    def __call__(self, task, arrays, place):
        self.function(task, arrays, place)

    def close(self):
        self.closed = True

    def stop(self):
        pass

    def watch(self, seconds):
        return None


class Makes:
    """Makes workers of a function."""

    def __init__(self, worker):
        self.worker, self.closed = worker, False

    def __call__(self, counters):
        return Does(self.worker(counters))

    def close(self):
        self.closed = True


@pytest.fixture
def engines():
    made = []

    def make(threads=3, worker=plain, budget=100 * SLOT, **options):
        made.append(Engine(threads, Makes(worker), Budget(budget), **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace")]


def values(filled):
    return filled.arrays["x"].tolist()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_batches_come_in_order_whatever_the_threads_do(engines, threads):
    stream = engines(threads).stream(Numbers(), SPECS, slots=4)
    for number in range(200):
        filled = next(stream)
        assert filled.about == number
        assert values(filled) == list(range(8 * number, 8 * number + 8))


def test_a_slow_first_task_does_not_let_later_batches_overtake(engines):
    gate = threading.Event()

    def worker(counters):
        def work(task, arrays, place):
            if task == (0, 0):
                gate.wait()
            plain(counters)(task, arrays, place)

        return work

    engine = engines(3, worker)
    stream = engine.stream(Numbers(), SPECS, slots=4)
    while engine.statistics().streams[0].ready < 3:  # batches 1 to 3 are done before batch 0
        pass
    gate.set()
    assert [next(stream).about for _ in range(5)] == list(range(5))


def test_a_finite_source_ends_the_stream(engines):
    stream = engines().stream(Numbers(stop=5), SPECS, slots=3)
    assert [filled.about for filled in stream] == [0, 1, 2, 3, 4]
    assert next(stream, "over") == "over"


def test_no_more_batches_exist_than_there_are_slots(engines):
    engine = engines(2, budget=3 * SLOT)
    stream = engine.stream(Numbers(), SPECS, slots=3)
    for _ in range(50):
        next(stream)
    assert engine.statistics().budget.peak == 3 * SLOT


def test_a_slot_returns_when_the_last_view_of_its_batch_is_gone(engines):
    stream = engines(1).stream(Numbers(), SPECS, slots=2)
    first = next(stream)
    kept = first.arrays["x"][2:4]
    del first
    for _ in range(20):
        next(stream)
    assert kept.tolist() == [2, 3], "memory that is still in view was filled again"


def test_a_consumer_that_holds_every_batch_is_told_and_does_not_hang(engines):
    stream = engines(2, budget=5 * SLOT).stream(Numbers(), SPECS, slots=3)
    held = [next(stream) for _ in range(5)]  # two more than it was given: the budget has them
    with pytest.raises(BudgetError, match="all 5 batches"):
        next(stream)
    held.clear()
    assert next(stream).about == 5


def test_a_budget_too_small_for_the_slots_is_an_error_with_the_numbers(engines):
    stream = engines(1, budget=SLOT // 2).stream(Numbers(), SPECS, slots=2)
    with pytest.raises(BudgetError, match="128 bytes.* 64 "):
        next(stream)


def test_an_error_in_a_task_reaches_the_consumer_at_its_batch(engines):
    def worker(counters):
        def work(task, arrays, place):
            if task == (2, 5):
                raise ValueError("torn")
            plain(counters)(task, arrays, place)

        return work

    stream = engines(4, worker).stream(Numbers(), SPECS, slots=4)
    assert [next(stream).about for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="torn"):
            next(stream)


def test_an_error_in_the_source_reaches_the_consumer(engines):
    class Broken(Numbers):
        def __next__(self):
            if self.next == 2:
                raise ValueError("no plan")
            return super().__next__()

    stream = engines().stream(Broken(), SPECS, slots=4)
    assert [next(stream).about for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="no plan"):
        next(stream)


def test_closing_ends_the_threads_and_wakes_a_waiting_consumer(engines):
    gate = threading.Event()

    def worker(_):
        def work(task, arrays, place):
            gate.wait()

        return work

    engine = engines(2, worker)
    stream = engine.stream(Numbers(), SPECS, slots=2)
    ended = []
    consumer = threading.Thread(target=lambda: ended.append(list(stream)))
    consumer.start()
    closer = threading.Thread(target=engine.close)
    closer.start()
    consumer.join(60)
    assert ended == [[]]
    gate.set()
    closer.join(60)
    assert not closer.is_alive()
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.stream(Numbers(), SPECS, slots=2)
    assert "closed" in repr(engine)


def test_two_streams_share_threads_and_budget(engines):
    engine = engines(2, budget=5 * SLOT)
    train = engine.stream(Numbers(), SPECS, slots=3)
    assert next(train).about == 0
    threads = threading.active_count()
    validation = engine.stream(Numbers(stop=10), SPECS, slots=2)
    assert [filled.about for filled in validation] == list(range(10))
    assert threading.active_count() == threads
    assert [next(train).about for _ in range(3)] == [1, 2, 3]
    assert engine.statistics().budget.peak <= 5 * SLOT


def test_a_dropped_stream_gives_its_budget_back(engines):
    engine = engines(2, budget=4 * SLOT)
    for _ in range(30):
        stream = engine.stream(Numbers(), SPECS, slots=4)
        held = next(stream)
        engine.drop(stream)
        assert next(stream, None) is None
        del held
        while engine.statistics().budget.held:
            pass
    assert engine.statistics().streams == ()


def test_memory_below_the_floor_shrinks_prefetch_and_says_so_once(engines):
    free, said = [10_000], []
    engine = engines(2, keep_free=1_000, notice=said.append, available=lambda: free[0])
    engine._mind_memory()
    stream = engine.stream(Numbers(), SPECS, slots=6)
    while engine.statistics().streams[0].ready < 6:
        pass
    free[0] = 500
    engine._mind_memory()
    engine._mind_memory()
    assert len(said) == 1
    assert "keep" in said[0]
    for _ in range(20):
        next(stream)
        engine._mind_memory()
    assert engine.statistics().streams[0].slots <= 3
    assert engine.statistics().budget.held <= 3 * SLOT
    free[0] = 10_000
    engine._mind_memory()
    assert len(said) == 2
    assert engine.statistics().streams[0].slot_limit == 6


def test_memory_is_minded_while_nobody_takes_a_batch(engines):
    free, said = [10_000], queue.SimpleQueue()
    engine = engines(1, keep_free=1_000, notice=said.put, available=lambda: free[0])
    stream = engine.stream(Numbers(), SPECS, slots=3)
    next(stream)
    free[0] = 500
    assert "keep" in said.get(timeout=60)


def wait_until_full(engine, slots):
    while engine.statistics().streams[0].ready < slots:
        pass


def test_a_wait_after_idle_threads_deepens_the_prefetch_up_to_the_most(engines):
    gate = queue.SimpleQueue()

    def gated(counters):
        def work(task, arrays, place):
            if task[1] == 0:
                gate.get()

        return work

    engine = engines(1, worker=gated)
    stream = engine.stream(Numbers(), SPECS, slots=2, most=4)
    depths = []
    for _ in range(5):  # a pause in which all is prefetched, then a rush that has to wait
        limit = engine.statistics().streams[0].slot_limit
        for _ in range(limit - engine.statistics().streams[0].ready):
            gate.put(None)
        wait_until_full(engine, limit)
        for _ in range(limit):
            next(stream)
        opener = threading.Timer(0.05, gate.put, (None,))
        opener.start()
        next(stream)
        opener.join()
        depths.append(engine.statistics().streams[0].slot_limit)
    for _ in range(10):
        gate.put(None)
    assert depths == [3, 4, 4, 4, 4]


def test_a_consumer_that_is_always_faster_does_not_deepen_the_prefetch(engines):
    gate = queue.SimpleQueue()

    def gated(counters):
        def work(task, arrays, place):
            if task[1] == 0:
                gate.get()

        return work

    engine = engines(1, worker=gated)
    stream = engine.stream(Numbers(), SPECS, slots=2, most=8)
    for _ in range(30):
        gate.put(None)  # one batch at a time, so that never all of them are ready
        next(stream)
    assert engine.statistics().streams[0].slot_limit == 2
    for _ in range(10):
        gate.put(None)


def test_a_forked_child_is_told_and_its_exit_does_not_hang(engines):
    engine = engines(2)
    stream = engine.stream(Numbers(), SPECS, slots=2)
    next(stream)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child():
        try:
            engine.stream(Numbers(), SPECS, slots=2)
        except UsageError as error:
            sender.send(str(error))
        engine.close()

    process = context.Process(target=child)
    process.start()
    assert "another process" in receiver.recv()
    process.join(60)
    assert process.exitcode == 0
    assert next(stream).about == 1


def test_statistics_count_what_was_done(engines):
    engine = engines(2)
    stream = engine.stream(Numbers(stop=10), SPECS, slots=3)
    for _ in stream:
        pass
    figures = engine.statistics()
    assert figures.tasks == figures.images == 80
    assert figures.streams[0].delivered == 10
    assert figures.threads == 2
    assert figures.waiting_s > 0


def test_slots_are_views_of_one_block_and_freed_from_the_garbage_collector():
    ended = queue.SimpleQueue()
    pool = SlotPool(SPECS, 1, Budget(SLOT), ended=ended.put)
    slot = pool.take()
    assert pool.take() is None
    arrays = pool.lease(slot)
    arrays["y"][:] = 7
    cycle = [arrays]
    cycle.append(cycle)
    del arrays, cycle
    gc.collect()
    ended.get_nowait().take_back()
    assert pool.take() is slot
    assert int(slot.arrays()["y"].sum()) == 7 * 15
    assert np.shares_memory(slot.arrays()["x"], slot.arrays()["x"])


def test_tasks_come_by_rank_and_then_in_turn_whoever_takes_them():
    tasks = TaskQueue()
    put = [(number % 3, number) for number in range(3000)]
    for rank, number in put:
        tasks.put(rank, number)
    assert [tasks.get() for _ in range(1000)] == [number for rank, number in put if not rank]
    assert len(tasks) == 2000
    got = []
    takers = [
        threading.Thread(target=lambda: [got.append(tasks.get()) for _ in range(500)])
        for _ in range(6)
    ]
    for taker in takers:
        taker.start()
    for number in range(1000):
        tasks.put(1, number)
    for taker in takers:
        taker.join(60)
    assert sorted(got) == sorted([number for rank, number in put if rank] + list(range(1000)))
    assert not len(tasks)
