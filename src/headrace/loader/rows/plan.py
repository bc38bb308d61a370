"""From draw numbers to tasks: which rows make up a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from headrace.loader.rows.order import RowOrder
from headrace.loader.rows.work import FIELDS
from headrace.sampling.bijection import Ints
from headrace.sampling.items import RowWindows

__all__ = ["MOST_WINDOWS", "RowPlanner", "RowTask"]

#: Most windows of a task, and how long one should take. Handing a task out and taking it back costs
#: the training process some 0.1 ms of Python whatever is in it, and that process is one however
#: many CPUs there are; long tasks hold up the first batches and the end.
MOST_WINDOWS = 256
_FEWEST_WINDOWS = 8
_TASK_SECONDS = 0.008


class RowTask(NamedTuple):
    """Windows for one thread."""

    lines: Ints  #: [n, FIELDS]


class RowPlanner:
    """Turns draws into tasks, of several batches at once.

    `on_the_way` batches are filled at once; `pace` gives the seconds that a window has taken so
    far, 0 if there was none. Neither changes what is in a batch.
    """

    def __init__(
        self,
        windows: RowWindows,
        order: RowOrder,
        batch_size: int = 1,
        threads: int = 1,
        on_the_way: int = 1,
        pace: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._windows, self._order, self._pace = windows, order, pace
        self._first = max(_FEWEST_WINDOWS, batch_size // threads)
        waiting = max(1, 2 * on_the_way * batch_size // (3 * threads))  # one, or two, for a thread
        self._most = max(_FEWEST_WINDOWS, min(MOST_WINDOWS, waiting))

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[Ints, list[RowTask]]]:
        """Draw numbers and tasks of batches."""
        lines = self.lines(np.concatenate(numbers))
        size = self._task_size()
        planned, first = [], 0
        for batch in numbers:
            mine = lines[first : first + len(batch)]
            mine[:, 0] = np.arange(len(batch))
            tasks = np.array_split(mine, -(-len(batch) // size))
            planned.append((batch, [RowTask(task) for task in tasks]))
            first += len(batch)
        return planned

    def _task_size(self) -> int:
        seconds = self._pace()
        wanted = int(_TASK_SECONDS / seconds) if seconds else self._first
        return min(self._most, max(_FEWEST_WINDOWS, wanted))

    def lines(self, numbers: Ints) -> Ints:
        """One line a draw, in order; the row is still to be filled in."""
        lines = np.zeros((len(numbers), len(FIELDS)), np.int64)
        lines[:, 1] = numbers
        lines[:, 3], lines[:, 2] = self._order.draw(numbers)
        lines[:, 4], lines[:, 5] = self._windows.locate(lines[:, 2])
        return lines
