"""Windows of rows: how many there are over files of so many rows, and where each begins.

A stretch is what windows may run through without a break: one file, or all files together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.hashed import Ints

__all__ = ["RowWindows"]


class RowWindows:
    """Windows of `size` rows, one every `stride` rows; what is left at an end is not used.

    A stretch with fewer rows than a window has none; with `short` it has one, of all its rows, so
    that a stretch of N > 0 rows has max(1, (N - size) // stride + 1) windows.

    >>> windows = RowWindows([100, 0, 70], size=64, stride=32)
    >>> len(windows), [column.tolist() for column in windows.locate([0, 1, 2])]
    (3, [[0, 32, 100], [64, 64, 64]])
    >>> len(RowWindows([100, 0, 70], size=64, stride=32, across_files=True))
    4
    """

    def __init__(
        self,
        file_rows: Sequence[int] | Ints,
        size: int,
        stride: int,
        *,
        across_files: bool = False,
        short: bool = False,
    ) -> None:
        for name, value in (("window", size), ("stride", stride)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise UsageError(f"{name} is {value!r}", remedy="Give a number of rows from 1 on")
        rows = np.asarray(file_rows, np.int64).reshape(-1)
        self.size, self.stride = int(size), int(stride)
        self.across_files = across_files
        self.stretches: Ints = np.array([rows.sum()], np.int64) if across_files else rows
        whole = (self.stretches - self.size) // self.stride + 1
        least = np.where(self.stretches > 0, 1, 0) if short else 0
        self.counts: Ints = np.where(self.stretches >= self.size, whole, least)
        self.rows = int(rows.sum())
        self._ends = np.cumsum(self.counts)
        self._first_row = np.cumsum(self.stretches) - self.stretches

    def __repr__(self) -> str:
        return f"RowWindows({len(self)} of {self.size} rows, stride {self.stride})"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def too_short(self) -> npt.NDArray[Any]:
        """Numbers of the stretches that have rows, but fewer than a window."""
        return np.flatnonzero((self.stretches > 0) & (self.stretches < self.size))

    def locate(self, windows: npt.ArrayLike) -> tuple[Ints, Ints]:
        """First row, counted through all files, and number of rows of windows."""
        number = np.asarray(windows, np.int64)
        if number.size and (number.min() < 0 or number.max() >= len(self)):
            raise UsageError(
                f"window {number.max() if number.min() >= 0 else number.min()} is outside "
                f"{len(self)} windows",
                remedy="Windows are numbered from 0",
            )
        stretch = np.searchsorted(self._ends, number, side="right")
        into = number - (self._ends[stretch] - self.counts[stretch])
        first = self._first_row[stretch] + into * self.stride
        return first, np.minimum(self.size, self.stretches[stretch])

    def before(self, rows: npt.ArrayLike) -> Ints:
        """How many windows begin before each of these rows, counted through all files."""
        row = np.asarray(rows, np.int64)
        if not len(self.stretches):
            return np.zeros(row.shape, np.int64)
        found = np.searchsorted(self._first_row, row, side="right") - 1
        stretch = np.clip(found, 0, len(self.stretches) - 1)
        begun = -(-(row - self._first_row[stretch]) // self.stride)
        inside: Ints = np.clip(begun, 0, self.counts[stretch])
        return self._ends[stretch] - self.counts[stretch] + inside
