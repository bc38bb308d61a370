"""The threads: one that starts batches, and one a CPU that fills them.

The scheduler waits for slots to come free, asks the stream's source for the next batch, and queues
its tasks; the workers take tasks in order. A batch is handed on when all of its tasks are done and
all batches before it have been handed on, so the order does not depend on the threads.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from headrace.engine.machine import available_memory
from headrace.engine.slots import (
    Arrays,
    ArraySpec,
    Budget,
    Lock,
    Returned,
    SharedMemory,
    SlotPool,
)
from headrace.engine.statistics import Counters, EngineStatistics, Span, StageStatistics
from headrace.engine.stream import BatchSource, Gate, Pending, Stream
from headrace.errors import UsageError, WorkerError

_LOOK_SECONDS = 0.25  # how often free memory and workers are looked at
_POLL_SECONDS = 0.01  # a batch that is being filled takes 50 ms
_CLEARLY = 256 << 20  # more than the floor before prefetch grows back, or a quarter of it if less
_JOIN_SECONDS = 0.7  # a task takes milliseconds; after this it is cut off
_LAST_SECONDS = 5.0  # what cannot be cut off: a machine that swaps
_FEWEST_SLOTS = 2  # below the memory floor: one to fill while the consumer has the other


class Worker(Protocol):
    """What one thread does its tasks with."""

    def __call__(self, task: Any, arrays: Arrays, place: int) -> None:
        """Perform a task into a slot's arrays; `place` is the slot's in shared memory."""

    def close(self) -> None:
        """Nothing more to do. Called by its thread."""

    def stop(self) -> None:
        """Cut off a task that takes too long, if possible. Called by another thread."""

    def watch(self, seconds: float) -> WorkerError | None:
        """`seconds` have passed: the error, if it has been silent for too long. By another thread.

        Before that it says so, and has its work done by another, where that can be.
        """


class WorkerMaker(Protocol):
    """Makes a worker for each thread, when it has its first task."""

    def __call__(self, counters: Counters, /) -> Worker:
        """A worker, in the thread that it is for."""

    def close(self) -> None:
        """All workers have been closed."""


_LAST = 1  # behind every task: a closed engine skips them, but each must be accounted for
_T = TypeVar("_T")


class TaskQueue(Generic[_T]):
    """The queue of tasks: lower ranks first, then in the order they came.

    As `queue.PriorityQueue`, whose waiting is Python; here it is that of a `SimpleQueue`, in C. A
    task is handed over once a millisecond or two on every thread.

    >>> tasks = TaskQueue()
    >>> tasks.put(0, "a"), tasks.put(0, "b"), tasks.put(-1, "c")
    (None, None, None)
    >>> tasks.get(), tasks.get(), tasks.get()
    ('c', 'a', 'b')
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _T]] = []  # heapq is C: threads wait outside
        self._count = itertools.count()
        self._there: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each in the heap

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, rank: int, task: _T) -> None:
        """Add a task."""
        heapq.heappush(self._heap, (rank, next(self._count), task))
        self._there.put(None)

    def get(self) -> _T:
        """Wait for a task and take it."""
        self._there.get()
        return heapq.heappop(self._heap)[2]


class Engine:
    """Threads, a task queue and a budget, shared by all streams."""

    def __init__(
        self,
        threads: int,
        make_worker: WorkerMaker,
        budget: Budget,
        *,
        shared: SharedMemory | None = None,
        keep_free: int = 0,
        notice: Callable[[str], None] = lambda _: None,
        available: Callable[[], int] = available_memory,
    ) -> None:
        self.budget = budget
        self._make_worker = make_worker
        self._workers: list[Worker] = []
        self._shared = shared
        self._keep_free = keep_free
        self._notice = notice
        self._available = available
        # The newest stream's tasks go first: who opens a second one waits for its batches.
        self._tasks: TaskQueue[tuple[Pending, Any] | None] = TaskQueue()
        self._opened = itertools.count(1)
        # A slot has come back, or look again (True), say when you have (a gate), or stop (False).
        self._events: queue.SimpleQueue[bool | Returned | Gate] = queue.SimpleQueue()
        self._streams: list[Stream] = []
        self._dropped: list[Stream] = []  # whose slots have not all come back yet
        self._wanted: dict[int, int] = {}  # slots of each stream while memory is not short
        self._counters = [Counters() for _ in range(threads)]
        self._stopping = False
        self._short = False
        self._stuck: WorkerError | None = None
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._stopping else f"{len(self._counters)} threads"
        return f"<Engine {state}, {len(self._streams)} streams, {len(self._tasks)} tasks queued>"

    def stream(
        self,
        source: BatchSource,
        specs: Mapping[str, ArraySpec],
        slots: int,
        lock: Lock | None = None,
        *,
        most: int = 0,
    ) -> Stream:
        """Start delivering a source's batches, with at most `slots` of them in existence.

        Where the consumer waits although the threads had been idle, there may be more, up to
        `most`: as deep a prefetch as the unevenness of its steps asks for.
        """
        self._check()
        pool = SlotPool(
            specs,
            slots,
            self.budget,
            ended=self._events.put,
            shared=self._shared,
            lock=lock,
        )
        stream = Stream(next(self._opened), source, pool, most, self)
        with self._lock:
            self._streams.append(stream)
            self._wanted[id(stream)] = slots
            if not self._threads:
                self._start()
        self._events.put(True)
        return stream

    def drop(self, stream: Stream, *, wait: bool = False) -> None:
        """A stream is no longer wanted: start no more of its batches and free its slots.

        Those that are being filled become free in a moment, unless it should `wait` for them.
        """
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
                self._wanted.pop(id(stream), None)
                self._dropped.append(stream)
        stream.abort()
        self._events.put(True)
        while wait and not self._stopping:
            handled = Gate()
            self._events.put(handled)
            handled.wait(_POLL_SECONDS)
            if handled.is_set() and not stream.busy:
                return

    def statistics(self) -> EngineStatistics:
        """The figures now."""
        stages: dict[str, float] = {}
        for counters in self._counters:
            for name, seconds in counters.seconds.copy().items():
                stages[name] = stages.get(name, 0.0) + seconds
        return EngineStatistics(
            threads=len(self._counters),
            stages=tuple(StageStatistics(name, busy) for name, busy in stages.items()),
            waiting_s=sum(counters.waiting for counters in self._counters),
            tasks=sum(counters.tasks for counters in self._counters),
            images=sum(counters.images for counters in self._counters),
            bytes_read=sum(counters.bytes for counters in self._counters),
            queued_tasks=len(self._tasks),
            budget=self.budget.statistics(),
            streams=tuple(stream.statistics() for stream in list(self._streams)),
            processes=tuple(c.process for c in self._counters if c.process),
        )

    def record_spans(self, record: bool) -> tuple[list[Span], ...]:
        """Begin or end to record what each worker does when; the spans so far, by worker."""
        found = tuple(counters.spans or [] for counters in self._counters)
        for counters in self._counters:
            counters.spans = [] if record else None
        return found

    def seconds_each(self) -> float:
        """Mean time that an image, or whatever tasks count as one, has taken; 0 at first."""
        busy = sum(sum(counters.seconds.copy().values()) for counters in self._counters)
        return busy / max(1, sum(counters.images for counters in self._counters))

    def close(self) -> None:
        """End the threads. Safe to call twice, from any thread, and in a forked child."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._events.put(False)
        for _ in self._counters:
            self._tasks.put(_LAST, None)
        for stream in self._streams:
            stream.abort()
        self._join(_JOIN_SECONDS)
        for worker in list(self._workers):  # those that have not ended by themselves
            worker.stop()
        self._join(_LAST_SECONDS)
        while not self._events.empty():
            if isinstance(event := self._events.get(), Returned):
                event.take_back()
        for stream in [*self._streams, *self._dropped]:
            stream.end()
        self._dropped.clear()
        self._make_worker.close()
        if self._shared is not None:
            self._shared.close()

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def one_more(self, stream: Stream) -> bool:
        """A consumer holds all of a stream's batches: let there be another, if it fits."""
        if self.budget.free < stream.pool.slot_bytes:
            return False
        with self._lock:
            self._wanted[id(stream)] = self._wanted.get(id(stream), 0) + 1
        stream.pool.limit += 1
        self._events.put(True)
        return True

    def deeper(self, stream: Stream) -> None:
        """Steps are uneven: prefetch one batch more, up to the most, while memory is not short."""
        if not self._short and self._wanted.get(id(stream), stream.most) < stream.most:
            self.one_more(stream)

    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._stopping

    def stuck(self) -> WorkerError | None:
        """The error of a worker that has been silent for too long."""
        return self._stuck

    # -- threads -------------------------------------------------------------------------------

    def _start(self) -> None:
        self._threads = [threading.Thread(target=self._schedule, name="headrace-schedule")]
        for number, counters in enumerate(self._counters):
            thread = threading.Thread(
                target=self._work, args=(counters,), name=f"headrace-{number}"
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.daemon = True  # an interpreter that exits closes us, but must never wait for us
            thread.start()

    def check_process(self) -> None:
        """Raise in a process that has none of the threads."""
        if self._pid != os.getpid():
            raise UsageError(
                "the loader was started in another process",
                remedy="Make it after the fork: its threads do not follow into a child "
                "(with torch's DataLoader, use num_workers=0)",
            )

    def _check(self) -> None:
        self.check_process()
        if self._stopping:
            raise UsageError("the loader is closed", remedy="Make a new one")

    def _schedule(self) -> None:
        looked = 0.0
        while (event := self._next_event()) is not False:
            if isinstance(event, Returned):
                event.take_back()
            handled = event if isinstance(event, Gate) else None
            del event  # it holds the slot
            if (passed := time.monotonic() - looked) > _LOOK_SECONDS:
                looked += passed
                if self._keep_free:
                    self._mind_memory()
                # More has passed if this process itself was stopped: that is nobody's silence.
                self._watch(min(passed, 2 * _LOOK_SECONDS))
            for stream in list(self._dropped):
                if stream.reclaim():
                    self._dropped.remove(stream)
            # Memory that is about to come back is worth waiting for.
            patient = not self._events.empty() or any(stream.busy for stream in self._dropped)
            for stream in list(self._streams):
                stream.admit(partial(self._submit, stream.rank), patient=patient)
            if handled is not None:
                handled.set()

    def _next_event(self) -> bool | Returned | Gate:
        """What happens next; `True` also when it is time to look around again."""
        try:
            return self._events.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return True

    def _submit(self, rank: int, pending: Pending, task: Any) -> None:
        self._tasks.put(-rank, (pending, task))

    def _work(self, counters: Counters) -> None:
        worker: Worker | None = None
        clock = time.perf_counter
        while True:
            started = clock()
            item = self._tasks.get()
            ended = clock()
            counters.waiting += ended - started
            if counters.spans is not None:
                counters.spans.append(("wait", started, ended))
            if item is None:
                break
            pending, task = item
            error: BaseException | None = None
            if pending.error is None and not self._stopping:
                try:
                    if worker is None:
                        worker = self._make_worker(counters)
                        self._workers.append(worker)
                    worker(task, pending.arrays, pending.slot.place)
                except BaseException as caught:  # handed to the consumer, who raises it
                    error = _without_frames(caught)
            counters.tasks += 1
            if pending.task_done(error) and self._dropped:
                self._events.put(True)  # the scheduler may be waiting to reclaim its slot
            del item, pending, task, error
        if worker is not None:
            worker.close()
            self._workers.remove(worker)

    def _watch(self, seconds: float) -> None:
        """Look whether workers still answer."""
        found = [worker.watch(seconds) for worker in list(self._workers)]
        self._stuck = next((error for error in found if error is not None), None)

    def _mind_memory(self) -> None:
        """Shrink every stream to the fewest slots while memory is short; grow back after."""
        available = self._available()
        if not self._short and available < self._keep_free:
            self._short = True
            self._notice(
                f"only {available / 2**30:.1f} GiB of memory are free, below the "
                f"{self._keep_free / 2**30:.1f} GiB to keep: prefetching as little as possible"
            )
        elif self._short and available > self._keep_free + min(self._keep_free // 4, _CLEARLY):
            self._short = False
            self._notice("memory is free again: prefetching as before")
        for stream in self._streams:
            wanted = self._wanted.get(id(stream), _FEWEST_SLOTS)
            stream.pool.limit = min(wanted, _FEWEST_SLOTS) if self._short else wanted
            stream.pool.shrink()


def _without_frames(error: BaseException) -> BaseException:
    """An error that does not keep what the frames it went through hold: the slot, and the engine.

    Its traceback still says where it came from.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__context__
    trace = error.__traceback__
    return error.with_traceback(trace and trace.tb_next)  # the first frame is that of the thread
