"""The row loader: batches of transformed windows, globally shuffled, resumable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from headrace.engine.machine import available_memory, ranks_on_node
from headrace.engine.slots import Arrays, ArraySpec, slot_bytes
from headrace.engine.statistics import EngineStatistics
from headrace.engine.workers import PROCESS_BYTES, Fill
from headrace.errors import BudgetError, UsageError
from headrace.formats.parquet.rows import CacheStatistics
from headrace.loader.endless import EndlessLoader, make_engine, refuse_dataloader_worker
from headrace.loader.options import (
    RowFields,
    RowOptions,
    changed_options,
    rank_and_world_size,
    with_options,
)
from headrace.loader.rows.plan import (
    MOST_WINDOWS,
    RowPlan,
    RowPlanner,
    fingerprint_of,
    order_of,
)
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.work import RowTransform, RowWork
from headrace.loader.sizes import (
    DEEPEST,
    MOST_THREADS,
    PREFETCH,
    SPARE_SLOTS,
    requested_workers,
)
from headrace.sampling.bijection import Ints

#: Memory for processes and their row groups where there is no store: two of them by default, which
#: took 1 GB in all, Arrow's own memory included.
_PROCESSES_BYTES = 640 << 20
#: Memory for batches that give every process its next task; fewer where they are larger.
_DEEP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class RowLoaderStatistics:
    """A row loader at one moment."""

    engine: EngineStatistics
    draws: int  #: windows consumed by all ranks together
    cache: CacheStatistics  #: row groups of this process; worker processes have their own


@with_options(RowOptions)
class RowLoader(EndlessLoader):
    """Endless batches of windows of rows, on lease: their memory is reused once they are let go.

    The iteration has no end, and a second `for` continues where the first stopped. Arrays are views
    of pooled memory: let go of them, or copy what you keep.

    >>> import headrace as hr
    >>> with hr.RowLoader("measurements/train", batch_size=256, seed=0) as loader:  # doctest: +SKIP
    ...     for batch in loader:
    ...         train_step(batch["rtt"])       # float64 [256, 64]

    A batch is a dict of arrays: what the `transform` (a `RowTransform`) writes, or the columns
    themselves.

    Options are the fields of `RowOptions`, given by name, or an object of it and what differs.
    """

    def __init__(
        self,
        rows: RowSet | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        options: RowOptions | None = None,
        /,
        *,
        transform: RowTransform | None = None,
        **changes: Unpack[RowFields],
    ) -> None:
        refuse_dataloader_worker()
        self.options = options = changed_options(RowOptions, options, changes)
        batch_size = options.batch_size
        self.rows = rows if isinstance(rows, RowSet) else RowSet(rows)
        check_hosts(len(self.rows), rank_and_world_size(options.rank, options.world_size)[1])
        self._order = order_of(self.rows, options.shuffle, options.seed, options.open_pieces)
        if options.shuffle == "exact":
            self.rows.fill_store()  # its first batch has windows of nearly every row group
        work = RowWork(self.rows, transform, options.seed)
        specs = work.specs(batch_size)
        cache_bytes = self.rows.cache_bytes
        sizes = RowSizes.of(options, specs, cache_bytes)
        engine = make_engine(
            options,
            sizes,
            specs,
            work,
            _perform,
            held=cache_bytes,
            process_bytes=PROCESS_BYTES + cache_bytes,
        )
        planner = RowPlanner(
            self.rows.windows,
            self._order,
            batch_size,
            sizes.threads,
            sizes.slots - 1,  # the consumer has one
            engine.seconds_each,
        )
        super().__init__(options, sizes, specs, planner, engine)

    def __repr__(self) -> str:
        return (
            f"<RowLoader of {len(self.rows):,} windows, batch {self.options.batch_size}, "
            f"{self._draws:,} draws consumed>"
        )

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        return self._next_filled().arrays

    def next_windows(self, count: int) -> tuple[Ints, Ints]:
        """Passes and windows of the next draws of all ranks, without drawing them."""
        return self._order.draw(np.arange(self._draws, self._draws + count))

    def statistics(self) -> RowLoaderStatistics:
        """Frozen figures of everything so far."""
        return RowLoaderStatistics(
            self._engine.statistics(), self._draws, self.rows.access.statistics()
        )

    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint_of(self.rows, self.options.shuffle, self.options.open_pieces)


def check_hosts(windows: int, world: int) -> None:
    """Every host has a window of its own in every batch."""
    if world > windows:
        raise UsageError(
            f"{world} hosts share {windows} windows: some would train on the same ones at once",
            remedy="Use fewer hosts, more files, or a smaller window or stride",
        )


def _perform(plan: RowPlan, fill: Fill) -> None:
    fill(plan.matrix, None)


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Memory: how many slots, the budget, and threads and processes that fit into it."""

    slots: int  #: at first
    most_slots: int  #: where steps are uneven
    budget: int
    threads: int
    processes: int

    @staticmethod
    def of(options: RowOptions, specs: Mapping[str, ArraySpec], cache_bytes: int) -> RowSizes:
        """What batches and cached row groups need, within the budget."""
        one = slot_bytes(specs)
        # Every process has row groups of its own where there is no store.
        each = PROCESS_BYTES + cache_bytes
        threads, processes = requested_workers(options.workers)
        processes = min(processes, _PROCESSES_BYTES // each if cache_bytes else 1 << 20)
        least = PREFETCH + 2  # and one being filled, one with the consumer
        task = min(MOST_WINDOWS, options.batch_size)
        busy = -(-3 * processes * task // (2 * options.batch_size))  # batches: see `RowPlanner`
        wanted = max(least, min(busy + 1, _DEEP_BYTES // one))
        most = max(wanted, least + DEEPEST - PREFETCH)
        limit = options.memory_bytes
        if limit is None:
            needed = (most + SPARE_SLOTS) * one + processes * each + cache_bytes
            free = available_memory() // ranks_on_node()
            limit = max(min(needed, free // 4), 2 * one + cache_bytes)
        room = limit - cache_bytes - (least - PREFETCH // 2) * one
        processes = max(0, min(processes, room // each))
        if not options.workers:
            threads = min(threads, max(processes, MOST_THREADS))
        fit = (limit - cache_bytes - processes * each) // one
        if fit < 2:
            raise BudgetError(
                f"a memory budget of {limit / 2**20:.0f} MiB does not hold two batches of "
                f"{one / 2**20:.1f} MiB beside {cache_bytes / 2**20:.0f} MiB of row groups",
                remedy="Raise `memory`, or lower batch_size or the set's `cache`",
            )
        slots = min(wanted, fit)
        return RowSizes(
            slots=slots,
            most_slots=max(slots, min(most, fit - SPARE_SLOTS)),
            budget=limit,
            threads=threads,
            processes=processes,
        )
