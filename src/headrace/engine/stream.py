"""A stream: batches in order, whatever the threads do."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.engine.slots import Arrays, SlotPool
from headrace.engine.statistics import StreamStatistics
from headrace.errors import BudgetError, WorkerError

_STUCK_SECONDS = 0.1  # how long all slots may be with the consumer before another one is made
_NOTABLE_SECONDS = 0.001  # a wait that is more than waking up


class BatchSource(Protocol):
    """Where a stream's batches come from; called by one thread only."""

    def __next__(self) -> tuple[Any, list[Any]]:
        """What the batch is, for the consumer, and the tasks that fill it."""


class Gate:
    """Opens once. Unlike `threading.Event` it survives a Ctrl-C in the thread that waits.

    An Event is a Python-level lock and condition: an interrupt between two of their steps leaves
    the lock taken, and the thread that sets the event waits forever.
    """

    __slots__ = ("_hint", "_open")

    def __init__(self) -> None:
        self._open = False
        self._hint = threading.Lock()  # released when it opens; only wakes, says nothing
        self._hint.acquire()

    def is_set(self) -> bool:
        """Whether it is open."""
        return self._open

    def set(self) -> None:
        """Open it, once."""
        self._open = True
        self._hint.release()

    def wait(self, seconds: float) -> bool:
        """Wait for it to open; whether it is. For one thread."""
        if not self._open:
            self._hint.acquire(timeout=seconds)
        return self._open


@dataclass(eq=False)
class Pending:
    """A batch on its way."""

    about: Any  #: what the source said of it
    slot: Any
    arrays: Arrays  #: views for the threads that fill it
    tasks_left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: Gate = field(default_factory=Gate)
    error: BaseException | None = None

    def take_error(self) -> BaseException:
        """The error, to be raised by who has taken the slot back.

        Nothing stays here: the frame that raises lives as long as the error.
        """
        assert self.error is not None
        error, self.error = self.error, None
        self.slot, self.arrays = None, {}
        return error

    def task_done(self, error: BaseException | None) -> bool:
        """One task has ended; whether it was the last one."""
        with self.lock:
            self.tasks_left -= 1
            if error is not None and self.error is None:
                self.error = error
            last = self.tasks_left == 0
        if last:
            self.done.set()
        return last


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch that has arrived."""

    about: Any  #: what its source said of it
    arrays: Arrays  #: the slot's memory, on lease


class Host(Protocol):
    """What a stream asks of its engine."""

    def check_process(self) -> None:
        """Raise in a process that has none of the threads."""

    def is_closed(self) -> bool:
        """Whether nothing more will come."""

    def stuck(self) -> WorkerError | None:
        """Why nothing will come for a long time, if a worker has been silent for too long."""

    def one_more(self, stream: Stream, /) -> bool:
        """Allow one more slot; whether the budget has it."""

    def deeper(self, stream: Stream, /) -> None:
        """One more slot would have saved a wait."""


class Stream(Iterator[Filled]):
    """Iterates over a source's batches in order. Made by `Engine.stream`."""

    def __init__(
        self, rank: int, source: BatchSource, pool: SlotPool, most: int, engine: Host
    ) -> None:
        self.rank = rank  #: how late it was opened
        self.pool = pool
        self.most = most  #: slots there may be where the consumer's steps are uneven
        # The engine knows its streams too: both are let go of when it is closed (`end`).
        self._engine: Host | None = engine
        self._source: BatchSource | None = source
        self._order: queue.SimpleQueue[Pending | BaseException | None] = queue.SimpleQueue()
        self._on_the_way: deque[Pending] = deque()  # the scheduler appends, the consumer pops
        self._delivered = 0
        self._waited = 0.0
        self._was_full = False  # since the last wait the threads had nothing to do for us
        self._ended = False
        self._failed: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Stream {self._delivered} delivered, {len(self._on_the_way)} on the way>"

    # -- the scheduler's side ------------------------------------------------------------------

    def admit(self, submit: Callable[[Pending, Any], None], *, patient: bool) -> None:
        """Start as many batches as there are slots for. Called by the scheduler thread.

        It is an error if the budget has room for none at all, unless there will be (`patient`).
        """
        while not self._ended:
            try:
                try:
                    slot = self.pool.take()
                except BudgetError:
                    if not patient:
                        raise
                    slot = None
                if slot is None:
                    return
                try:
                    assert self._source is not None
                    about, tasks = next(self._source)
                except BaseException:
                    self.pool.put(slot)
                    raise
            except StopIteration:
                self._ended = True
                self._order.put(None)
                return
            except BaseException as error:
                self._ended = True
                self._order.put(error)
                return
            pending = Pending(about, slot, slot.arrays(), len(tasks))
            self._on_the_way.append(pending)
            self._order.put(pending)
            if not tasks:
                pending.done.set()
            for task in tasks:
                submit(pending, task)

    def abort(self) -> None:
        """Start no more batches and wake the consumer: nothing more will come."""
        self._ended = True
        self._failed = self._failed or StopIteration()
        self._order.put(None)

    def reclaim(self, *, all_done: bool = False) -> bool:
        """Give up the slots of batches that will not be delivered; whether none is left.

        Called by the scheduler for a stream that was dropped, and once more when the threads have
        ended (`all_done`), so nobody starts batches meanwhile.
        """
        while self._on_the_way and (all_done or self._on_the_way[0].done.is_set()):
            self.pool.put(self._on_the_way.popleft().slot)
        self.pool.limit = 0
        self.pool.shrink()
        return self.pool.made == 0

    def end(self) -> None:
        """The engine is closed: hold nothing of it, and no memory."""
        self.pool.abandon()
        self.reclaim(all_done=True)
        self._order = queue.SimpleQueue()
        self._engine = self._source = None

    @property
    def busy(self) -> bool:
        """Whether batches are on their way."""
        return bool(self._on_the_way)

    # -- the consumer's side -------------------------------------------------------------------

    def __next__(self) -> Filled:
        engine = self._engine
        if engine is not None:
            engine.check_process()
        if engine is None or self._failed is not None:
            raise _again(self._failed or StopIteration())
        self._was_full = self._was_full or self._full()
        started = time.perf_counter()
        try:
            pending = self._head(engine)
            while not pending.done.wait(0.1):
                if engine.is_closed():
                    raise StopIteration
                if (stuck := engine.stuck()) is not None:
                    # The batch stays on its way: its slot is not ours before it is done.
                    self._failed = stuck
                    raise _again(stuck)
        finally:
            waited = time.perf_counter() - started
            self._waited += waited
        if waited > _NOTABLE_SECONDS and self._was_full:
            # The threads were idle before this wait: on average they keep up, and only the
            # unevenness of steps and batches made it. A deeper prefetch evens that out.
            self._was_full = False
            engine.deeper(self)
        if self._ended and self._failed is not None:
            raise _again(self._failed)  # dropped while we waited: its slots are no longer ours
        self._on_the_way.popleft()
        self._delivered += 1
        if pending.error is not None:
            self._failed = _again(pending.error)
            self.pool.put(pending.slot)
            raise pending.take_error()
        return Filled(pending.about, self.pool.lease(pending.slot))

    def _full(self) -> bool:
        """Whether every batch that there is room for is ready."""
        if self.pool.out < self.pool.limit or not self._on_the_way:
            return False
        return all(pending.done.is_set() for pending in self._on_the_way.copy())

    def _head(self, engine: Host) -> Pending:
        """The next batch in order, as soon as it has been started."""
        stuck_since: float | None = None
        while True:
            if engine.is_closed():
                raise StopIteration
            try:
                head = self._order.get(timeout=0.05)
            except queue.Empty:
                # Every slot is with the consumer, so none will come free by itself.
                stuck = not self._on_the_way and self.pool.exhausted
                if not stuck:
                    stuck_since = None
                elif stuck_since is None:
                    stuck_since = time.monotonic()
                elif time.monotonic() - stuck_since > _STUCK_SECONDS:
                    if engine.one_more(self):
                        stuck_since = None
                        continue
                    raise BudgetError(
                        f"all {self.pool.made} batches that the budget allows are held by the "
                        "consumer",
                        remedy="Let go of earlier batches (or copy what you keep of them), or "
                        "raise `memory`",
                    ) from None
                continue
            if isinstance(head, BaseException):
                self._failed = _again(head)
                try:
                    raise head
                finally:
                    del head
            if head is None:
                self._failed = StopIteration()
                raise StopIteration
            return head

    def statistics(self) -> StreamStatistics:
        """The figures now."""
        on_the_way = self._on_the_way.copy()
        ready = sum(pending.done.is_set() for pending in on_the_way)
        return StreamStatistics(
            delivered=self._delivered,
            ready=ready,
            filling=len(on_the_way) - ready,
            consumer_waited_s=self._waited,
            slots=self.pool.made,
            slot_limit=self.pool.limit,
        )


def _again(error: BaseException) -> BaseException:
    """An error to keep or to raise once more, without the frames that the first one went through.

    Those hold the stream: one that kept such an error would keep itself and its memory alive.
    """
    try:
        return copy.copy(error)
    except Exception:  # users' errors may refuse
        return WorkerError(f"{type(error).__name__}: {error}")
