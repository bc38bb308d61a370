"""Threads that pull iterators ahead of a consumer, each into a short queue of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FeederStatistics:
    """Figures of some feeders."""

    threads: int
    ready: tuple[int, ...]  #: items that wait, per iterator
    ended: tuple[bool, ...]  #: whether an iterator has no more, per iterator


class Feeders(Generic[T]):
    """Keeps up to `depth` items of each iterator ready, in the order of that iterator.

    An error of an iterator is raised by the `take` that would have given its next item.

    >>> with Feeders([iter("ab"), iter("c")], depth=2) as feeders:
    ...     [feeders.take(0), feeders.take(1), feeders.take(0)]
    ['a', 'c', 'b']
    """

    def __init__(
        self,
        iterators: Sequence[Iterator[T]],
        *,
        depth: int,
        threads: int | None = None,
        name: str = "headrace-feeder",
    ) -> None:
        count = min(threads or len(iterators), len(iterators))
        self._depth = depth
        self._queues: list[deque[T]] = [deque() for _ in iterators]
        self._ended: list[BaseException | None] = [None] * len(iterators)
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(
                target=self._pull,
                args=({i: iterators[i] for i in range(number, len(iterators), count)},),
                name=f"{name}-{number}",
                daemon=True,
            )
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        figures = self.statistics()
        return f"<Feeders: {figures.threads} threads, ready {list(figures.ready)}>"

    def take(self, which: int) -> T:
        """The next item of an iterator, waiting for it; StopIteration at its end."""
        queue = self._queues[which]
        with self._changed:
            while not queue and self._ended[which] is None and not self._closed:
                self._changed.wait()
            if queue:
                item = queue.popleft()
                self._changed.notify_all()
                return item
            raise self._ended[which] or StopIteration

    def wait_ready(self, count: int) -> None:
        """Return when `count` iterators have an item ready, or all the rest have ended."""
        with self._changed:
            while not self._closed and sum(map(self._settled, range(len(self._queues)))) < count:
                self._changed.wait()

    def _settled(self, which: int) -> bool:
        return bool(self._queues[which]) or self._ended[which] is not None

    def statistics(self) -> FeederStatistics:
        """Frozen figures of now."""
        with self._changed:
            return FeederStatistics(
                threads=len(self._threads),
                ready=tuple(map(len, self._queues)),
                ended=tuple(end is not None for end in self._ended),
            )

    def close(self, timeout: float = 1.0) -> bool:
        """Let go of everything; whether all threads ended in that time.

        A thread inside its iterator ends when that returns.
        """
        with self._changed:
            self._closed = True
            for queue in self._queues:
                queue.clear()
            # Errors hold the frames they went through: what those held is to go now.
            self._ended = [StopIteration() for _ in self._queues]
            self._changed.notify_all()
        deadline = monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Feeders[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _pull(self, mine: dict[int, Iterator[T]]) -> None:
        """One thread: the iterators that have room, in turn."""
        while mine:
            which = self._next_with_room(mine)
            if which is None:
                return
            mine[which] = mine.pop(which)  # last in turn
            try:
                item = next(mine[which])
            except StopIteration:
                # A new one: this one holds the frames it went through, and so the iterator.
                self._end(which, StopIteration())
                del mine[which]
                continue
            except BaseException as error:  # the consumer gets it
                self._end(which, error)
                del mine[which]
                continue
            with self._changed:
                if not self._closed:
                    self._queues[which].append(item)
                    self._changed.notify_all()
            del item

    def _end(self, which: int, error: BaseException) -> None:
        with self._changed:
            self._ended[which] = error
            self._changed.notify_all()

    def _next_with_room(self, mine: dict[int, Iterator[T]]) -> int | None:
        """None when closed."""
        with self._changed:
            while not self._closed:
                for which in mine:
                    if len(self._queues[which]) < self._depth:
                        return which
                self._changed.wait()
        return None
