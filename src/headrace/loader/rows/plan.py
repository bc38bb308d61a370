"""Which window is draw number i, and which tasks make up a batch of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.loader.options import Shuffle
from headrace.loader.plan import Column, Plan
from headrace.loader.rows.rowset import RowSet
from headrace.sampling.bijection import Ints
from headrace.sampling.items import RowWindows, SourceItems
from headrace.sampling.order import LocalOrder
from headrace.sampling.sampler import Sampler

_NAME = "rows"  # part of the sampler's key; not the path, so that data may be moved


class RowOrder(Protocol):
    """An endless sequence of windows, a pure function of the draw number."""

    def draw(self, numbers: npt.ArrayLike, /) -> tuple[Ints, Ints]:
        """Pass and window of each draw."""


class _Exact:
    """The sampler of mixtures, with one source."""

    def __init__(self, windows: int, seed: int) -> None:
        self._sampler = Sampler([1.0], [SourceItems([windows])], seed, [_NAME])

    def draw(self, numbers: npt.ArrayLike) -> tuple[Ints, Ints]:
        draws = self._sampler.draw(numbers)
        return draws.turn, draws.start


class _Plain:
    def __init__(self, windows: int) -> None:
        self._windows = windows

    def draw(self, numbers: npt.ArrayLike) -> tuple[Ints, Ints]:
        turn, window = np.divmod(np.asarray(numbers, np.int64), self._windows)
        return turn, window


def order_of(rows: RowSet, shuffle: Shuffle, seed: int, open_pieces: int) -> RowOrder:
    """The order of a set's windows."""
    if shuffle not in get_args(Shuffle):
        raise UsageError(f"shuffle is {shuffle!r}", remedy="Give 'exact', 'local' or 'none'")
    if shuffle == "none":
        return _Plain(len(rows))
    if shuffle == "exact":
        return _Exact(len(rows), seed)
    pieces = rows.order_pieces
    bounds = rows.windows.before(np.append(pieces.starts, pieces.ends[-1]))
    return LocalOrder(np.diff(bounds), open_pieces, seed)


def fingerprint_of(rows: RowSet, shuffle: Shuffle, open_pieces: int) -> dict[str, Any]:
    """Everything that the sequence depends on, beside the seed."""
    local = shuffle == "local"
    about = {"name": _NAME, **rows.fingerprint(groups=local), "shuffle": shuffle}
    return {"sources": [{**about, **({"open_pieces": open_pieces} if local else {})}]}


#: Most windows of a task, and how long one should take. Handing a task out and taking it back costs
#: the training process some 0.1 ms of Python whatever is in it, and that process is one however
#: many CPUs there are; long tasks hold up the first batches and the end.
MOST_WINDOWS = 256
_FEWEST_WINDOWS = 8
_TASK_SECONDS = 0.008


class RowPlan(Plan):
    """Windows of rows: which they are, and where they lie."""

    __slots__ = ()

    window = Column(2)
    epoch = Column(3)
    first = Column(4)  #: row of the set with which it begins
    count = Column(5)  #: rows

    @staticmethod
    def empty(windows: int) -> RowPlan:
        """A plan with every number still 0."""
        return RowPlan(np.zeros((windows, 6), np.int64))


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

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[Ints, list[RowPlan]]]:
        """Draw numbers and tasks of batches."""
        plan = self.plan(np.concatenate(numbers))
        size = self._task_size()
        planned, first = [], 0
        for batch in numbers:
            mine = plan[first : first + len(batch)]
            mine.row[:] = np.arange(len(batch))
            tasks = np.array_split(mine.matrix, -(-len(batch) // size))
            planned.append((batch, [RowPlan(task) for task in tasks]))
            first += len(batch)
        return planned

    def _task_size(self) -> int:
        seconds = self._pace()
        wanted = int(_TASK_SECONDS / seconds) if seconds else self._first
        return min(self._most, max(_FEWEST_WINDOWS, wanted))

    def plan(self, numbers: Ints) -> RowPlan:
        """The plan of draws, in order; their rows are still to be filled in."""
        plan = RowPlan.empty(len(numbers))
        plan.draw[:] = numbers
        plan.epoch[:], plan.window[:] = self._order.draw(numbers)
        plan.first[:], plan.count[:] = self._windows.locate(plan.window)
        return plan
