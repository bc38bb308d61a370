"""The engine's queue of tasks: by rank, then in the order they came.

As `queue.PriorityQueue`, whose waiting is Python; here it is that of a `SimpleQueue`, in C. A task
is handed over once a millisecond or two on every thread.
"""

from __future__ import annotations

import heapq
import itertools
import queue
from typing import Generic, TypeVar

__all__ = ["TaskQueue"]

_T = TypeVar("_T")


class TaskQueue(Generic[_T]):
    """Lower ranks first.

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
