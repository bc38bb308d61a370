"""From draw numbers to tasks: which rows make up a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.loader.rows.order import RowOrder
from headrace.loader.rows.work import FIELDS
from headrace.sampling.hashed import Ints
from headrace.sampling.row_windows import RowWindows

__all__ = ["RowPlanner", "RowTask"]

#: Most windows of a task. It costs beside them, and a transform of `many` has less to do for each:
#: with 64 the network tokenizer was faster than with 32, with 128 no more (one run of each on a
#: shared machine: docs/decisions/2026-11-15-row-store.md).
_MOST_WINDOWS = 128
_FEWEST_WINDOWS = 8


class RowTask(NamedTuple):
    """Windows for one thread."""

    lines: Ints  #: [n, FIELDS]


class RowPlanner:
    """Turns draws into tasks, of several batches at once."""

    def __init__(
        self, windows: RowWindows, order: RowOrder, batch_size: int = 1, threads: int = 1
    ) -> None:
        self._windows, self._order = windows, order
        # Some six batches are on their way at once: two tasks of them for each thread.
        share = 6 * batch_size // (2 * threads)
        self._task = min(_MOST_WINDOWS, max(_FEWEST_WINDOWS, share))

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[Ints, list[RowTask]]]:
        """Draw numbers and tasks of batches."""
        lines = self.lines(np.concatenate(numbers))
        planned, first = [], 0
        for batch in numbers:
            mine = lines[first : first + len(batch)]
            mine[:, 0] = np.arange(len(batch))
            cuts = range(0, len(batch), self._task)
            planned.append((batch, [RowTask(mine[at : at + self._task]) for at in cuts]))
            first += len(batch)
        return planned

    def lines(self, numbers: Ints) -> Ints:
        """One line a draw, in order; the row is still to be filled in."""
        lines = np.zeros((len(numbers), len(FIELDS)), np.int64)
        lines[:, 1] = numbers
        lines[:, 3], lines[:, 2] = self._order.draw(numbers)
        lines[:, 4], lines[:, 5] = self._windows.locate(lines[:, 2])
        return lines
