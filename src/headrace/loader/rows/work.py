"""Filling the rows of a batch: read a window, hand it to the transform with its place to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.engine.machine import keep_freed_memory
from headrace.engine.slots import Arrays, ArraySpec
from headrace.engine.statistics import Counters
from headrace.engine.workers import Charges, Done
from headrace.errors import HeadraceError, UsageError, WorkerError
from headrace.formats.parquet.columns import Rows
from headrace.loader.rows.plan import RowPlan
from headrace.loader.rows.rowset import RowSet
from headrace.sampling.bijection import Ints

#: Name to shape and type of one window's values.
Outputs: TypeAlias = Mapping[str, tuple[tuple[int, ...], Any]]


class WindowDraw(NamedTuple):
    """Which window a transform is given. All its chance should come from these numbers."""

    seed: int
    epoch: Any  #: the pass over the set; with `many` an array [W]
    window: Any  #: number of the window in the set; with `many` an array [W]


@dataclass(frozen=True)
class RowTransform:
    """What is made of a window of rows.

    >>> def log(rows, out, draw):
    ...     out["inputs"][:] = np.log1p(rows["rtt"])
    >>> transform = RowTransform(log, outputs={"inputs": ((64,), "float32")})

    `function(rows, out, draw)` writes into the arrays of `out`, which are zeros, and returns
    nothing. If all its chance comes from `draw` (`np.random.default_rng(draw)`), samples do not
    depend on workers, hosts or where a run was resumed.
    """

    function: Callable[[Rows, Rows, WindowDraw], None]
    outputs: Outputs  #: name to shape and type of what it writes of one window
    #: Whether it takes up to 256 windows at once, which numpy does several times as fast: rows are
    #: [W, size, ...], out [W, ...].
    many: bool = False
    writes_all: bool = False  #: whether it writes every value, so that `out` need not be cleared


class RowWork:
    """Reads and transforms windows, on any thread of any process."""

    def __init__(self, rows: RowSet, transform: RowTransform | None, seed: int) -> None:
        if transform is not None and not isinstance(transform, RowTransform):
            raise UsageError(
                f"transform is {transform!r}, not a RowTransform",
                remedy="Wrap the function and say what it writes: hr.RowTransform(function, "
                "outputs={'inputs': ((1024,), 'int32')})",
            )
        self.rows = rows
        self.transform = transform or _columns_of(rows)
        self.outputs = _checked(self.transform.outputs)
        self.seed = seed

    def specs(self, batch_size: int) -> dict[str, ArraySpec]:
        """The arrays of a batch."""
        return {
            name: ArraySpec((batch_size, *shape), dtype)
            for name, (shape, dtype) in self.outputs.items()
        }

    def enter_process(self) -> None:
        """Once in a worker process: a transform makes the same arrays again and again."""
        keep_freed_memory()

    def open(self, budget: Charges) -> RowWork:
        """Itself: what it holds is charged for all threads of a process together."""
        del budget
        return self

    def close(self) -> None:
        """Nothing is held for one thread."""

    def error_at(self, plan: Ints, at: int, problem: str, remedy: str | None = None) -> WorkerError:
        """An error of a worker, with the window that it was filling; the remedy is for a crash."""
        window = int(RowPlan(plan).window[at])
        file, row = self.rows.place(window)
        if remedy is None:
            remedy = "Its own message stands above; workers=0 runs the transform here"
        return WorkerError(f"{problem}, at window {window}, row {row}", file=file, remedy=remedy)

    def fill(self, plan: Ints, arrays: Arrays, counters: Counters, how: None = None) -> Done:
        """Fill the rows of some windows, which are neighbours in the batch."""
        del how
        if self.transform.many:
            self._fill_many(RowPlan(plan), arrays, counters)
        else:
            self._fill_each(RowPlan(plan), arrays, counters)
        counters.images += len(plan)
        return Done(len(plan))

    def one(self, window: int, epoch: int) -> Rows:
        """A window's values in memory of their own."""
        out = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.outputs.items()}
        rows = self.rows[window]
        if self.transform.many:
            single = {name: column[None] for name, column in rows.items()}
            into = {name: array[None, ...] for name, array in out.items()}
            self._apply(single, np.array([window]), np.array([epoch]), into)
        else:
            self._apply(rows, window, epoch, out)
        return out

    def _fill_each(self, plan: RowPlan, arrays: Arrays, counters: Counters) -> None:
        read_s = transform_s = 0.0
        access = self.rows.access
        for number, (row, _, window, epoch, first, count) in enumerate(plan.matrix.tolist()):
            counters.at[0] = number
            started = perf_counter()
            values = access.rows(first, count)
            middle = perf_counter()
            out = {name: array[row, ...] for name, array in arrays.items()}
            self._apply(values, window, epoch, out)
            ended = perf_counter()
            read_s += middle - started
            transform_s += ended - middle
        counters.add("read", read_s)
        counters.add("transform", transform_s)

    def _fill_many(self, plan: RowPlan, arrays: Arrays, counters: Counters) -> None:
        ends = np.flatnonzero(np.diff(plan.count)) + 1  # nearly always none: all have as many rows
        for group in map(RowPlan, np.split(plan.matrix, ends)):
            started = perf_counter()
            values = self.rows.access.windows(group.first, int(group.count[0]))
            middle = perf_counter()
            first, last = int(group.row[0]), int(group.row[-1])
            out = {name: array[first : last + 1] for name, array in arrays.items()}
            self._apply(values, group.window, group.epoch, out)
            counters.add("read", middle - started)
            counters.add("transform", perf_counter() - middle)

    def _apply(self, values: Rows, window: Any, epoch: Any, out: Rows) -> None:
        if not self.transform.writes_all:  # what was there is another batch's
            for array in out.values():
                array[...] = 0
        try:
            returned: Any = self.transform.function(  # type: ignore[func-returns-value]
                values, out, WindowDraw(self.seed, epoch, window)
            )
        except HeadraceError:
            raise
        except Exception as error:
            first = int(np.min(window))
            file, row = self.rows.place(first)
            several = f" and {np.size(window) - 1} more" if np.size(window) > 1 else ""
            error.add_note(f"in the transform of window {first}{several}: row {row} of {file}")
            error.add_note(self._call(values, out))
            raise
        if returned is not None:
            raise UsageError(
                f"the transform returned {type(returned).__name__}",
                remedy="It writes into its second argument, `out`, and returns nothing",
            )

    def _call(self, values: Rows, out: Rows) -> str:
        """How a transform is called: the likeliest thing to be wrong with a new one."""
        rows, made = (
            ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            for arrays in (values, out)
        )
        many = self.transform.many
        return f"it was called as function(rows: {rows}; out: {made}; draw); many={many}"


def _copy(rows: Rows, out: Rows, draw: WindowDraw) -> None:
    """The columns as they are."""
    del draw
    for name, column in rows.items():
        out[name][...] = column


def _columns_of(rows: RowSet) -> RowTransform:
    """The columns of windows as they are, where these have a fixed size."""
    if len(rows.windows.too_short):
        raise UsageError(
            f"windows of fewer than {rows.windows.size} rows have no place in an array",
            remedy="Give a `transform` that fills the rest, or leave out short_windows",
        )
    first = rows[0]
    for name, column in first.items():
        if column.dtype.kind == "S":
            raise UsageError(
                f"column {name!r} is text, which has no fixed width",
                remedy="Leave it out of `columns`, or give a `prepare` or a `transform`",
            )
    outputs = {name: (column.shape, column.dtype) for name, column in first.items()}
    return RowTransform(_copy, outputs, writes_all=True)


def _checked(outputs: Outputs) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types as plain values."""
    found = {}
    for name, (shape, dtype) in outputs.items():
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise UsageError(
                f"outputs[{name!r}] has type {kind}", remedy="Give a type of fixed width"
            )
        found[name] = tuple(int(size) for size in shape), kind.str
    return found
