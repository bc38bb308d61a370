"""Filling the rows of a batch: read a window, hand it to the transform with its place to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeAlias

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

__all__ = ["Outputs", "RowWork", "Transform", "outputs_of"]

#: transform(rows, window, epoch, seed, out_rows): writes a window's values into `out_rows`, which
#: are zeros unless it says that it writes everything (`transform.writes_all = True`). With `many`,
#: all of them have one dimension more: windows [W], rows [W, size, ...], out [W, ...].
Transform: TypeAlias = Callable[[Rows, Any, Any, int, Rows], None]
#: Name to shape and type of one window's values.
Outputs: TypeAlias = Mapping[str, tuple[tuple[int, ...], Any]]


class RowWork:
    """Reads and transforms windows, on any thread of any process."""

    def __init__(
        self,
        rows: RowSet,
        transform: Transform | None,
        outputs: Outputs | None,
        seed: int,
        *,
        many: bool | None = None,
    ) -> None:
        self.rows = rows
        self.transform = transform or _copy
        self.many = bool(getattr(self.transform, "many", False)) if many is None else many
        self.outputs = outputs_of(rows, transform, outputs)
        self.seed = seed
        self._clear = not getattr(self.transform, "writes_all", False)

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

    def died_over(self, plan: Ints, cause: str) -> WorkerError:
        """Names the first window of those that a crashed process transformed."""
        window = int(RowPlan(plan).window[0])
        file, row = self.rows.place(window)
        return WorkerError(
            f"a worker process died ({cause}) while it transformed windows, the first of them "
            f"window {window}, row {row}",
            file=file,
            remedy="Its own message stands above; workers=0 runs the transform here",
        )

    def fill(self, plan: Ints, arrays: Arrays, counters: Counters, how: None = None) -> Done:
        """Fill the rows of some windows, which are neighbours in the batch."""
        del how
        if self.many:
            self._fill_many(RowPlan(plan), arrays, counters)
        else:
            self._fill_each(RowPlan(plan), arrays, counters)
        counters.images += len(plan)
        return Done(len(plan))

    def one(self, window: int, epoch: int) -> Rows:
        """A window's values in memory of their own."""
        out = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.outputs.items()}
        rows = self.rows[window]
        if self.many:
            single = {name: column[None] for name, column in rows.items()}
            into = {name: array[None, ...] for name, array in out.items()}
            self._apply(single, np.array([window]), np.array([epoch]), into)
        else:
            self._apply(rows, window, epoch, out)
        return out

    def _fill_each(self, plan: RowPlan, arrays: Arrays, counters: Counters) -> None:
        read_s = transform_s = 0.0
        access = self.rows.access
        for row, _, window, epoch, first, count in plan.matrix.tolist():
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
        if self._clear:  # what was there is another batch's
            for array in out.values():
                array[...] = 0
        try:
            returned = self.transform(values, window, epoch, self.seed, out)
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
                remedy="It writes into its last argument, `out_rows`, and returns nothing",
            )

    def _call(self, values: Rows, out: Rows) -> str:
        """How a transform is called: the likeliest thing to be wrong with a new one."""
        rows, made = (
            ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            for arrays in (values, out)
        )
        which = "windows, epochs" if self.many else "window, epoch"
        call = f"transform(rows: {rows}; {which}, seed, out_rows: {made})"
        return f"it was called as {call}; many={self.many}"


def _copy(rows: Rows, window: Any, epoch: Any, seed: int, out_rows: Rows) -> None:
    """The columns as they are."""
    del window, epoch, seed
    for name, column in rows.items():
        out_rows[name][...] = column


_copy.writes_all = True  # type: ignore[attr-defined]


def outputs_of(
    rows: RowSet, transform: Transform | None, outputs: Outputs | None
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of a window's values: as given, as the transform says, or the columns'."""
    if outputs is not None and transform is None:
        raise UsageError(
            "there are outputs and no transform that makes them",
            remedy="Give a `transform`, or leave out `outputs` for the columns as they are",
        )
    if outputs is None:
        outputs = getattr(transform, "outputs", None)
    if outputs is None and transform is not None:
        raise UsageError(
            "it is not known what the transform writes",
            remedy="Give `outputs`, such as {'inputs': ((1024,), 'int32')}, or let the transform "
            "have them as its attribute `outputs`",
        )
    if outputs is None:
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
    found = {}
    for name, (shape, dtype) in outputs.items():
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise UsageError(
                f"outputs[{name!r}] has type {kind}", remedy="Give a type of fixed width"
            )
        found[name] = tuple(int(size) for size in shape), kind.str
    return found
