"""Pieces: the row groups that are decoded together. Pure planning.

A row group is the least that can be decoded. Small ones are taken together up to `least_rows`, as
far as they lie in one file: files of thousands of tiny groups would else cost a store a file, and a
local shuffle its mixing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.sampling.bijection import Ints

__all__ = ["Piece", "Pieces"]


class Piece(NamedTuple):
    """Consecutive row groups of one file."""

    file: int  #: number of the file
    first: int  #: first row group
    last: int  #: the one after the last
    rows: int
    begin: int  #: its first row, counted in the file


class Pieces:
    """All rows of all files as pieces.

    >>> pieces = Pieces([(10, 10, 10), (), (50,)], least_rows=20)
    >>> list(pieces)
    [Piece(file=0, first=0, last=2, rows=20, begin=0), \
Piece(file=0, first=2, last=3, rows=10, begin=20), Piece(file=2, first=0, last=1, rows=50, begin=0)]
    >>> pieces.parts(first=25, count=10)
    [(1, 5, 10), (2, 0, 5)]
    """

    def __init__(self, group_rows: Sequence[Sequence[int]], least_rows: int = 1) -> None:
        self._pieces: list[Piece] = []
        for file, groups in enumerate(group_rows):
            first = rows = begin = 0
            for number, more in enumerate(groups):
                rows += more
                if rows >= least_rows or (number == len(groups) - 1 and rows):
                    self._pieces.append(Piece(file, first, number + 1, rows, begin))
                    first, rows, begin = number + 1, 0, begin + rows
        self.ends: Ints = np.cumsum([piece.rows for piece in self._pieces], dtype=np.int64)
        #: First row of each piece, counted through all files.
        self.starts: Ints = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        self._ends: list[int] = self.ends.tolist()  # bisecting a list of numbers is faster

    def __repr__(self) -> str:
        return f"<Pieces: {len(self)} of {int(self.ends[-1]) if len(self) else 0:,} rows>"

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def __getitem__(self, number: int) -> Piece:
        return self._pieces[number]

    def parts(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(piece, from, to) of each piece that rows lie in, counted through all files."""
        found = []
        number = bisect_right(self._ends, first)
        begin = self._ends[number - 1] if number else 0
        while count > 0:
            end = self._ends[number]
            take = min(count, end - first)
            found.append((number, first - begin, first - begin + take))
            first, count, begin, number = first + take, count - take, end, number + 1
        return found
