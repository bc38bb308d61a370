"""The memory that follows from a row loader's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.engine.machine import available_memory
from headrace.engine.slots import ArraySpec, slot_bytes
from headrace.errors import BudgetError
from headrace.loader.options import RowOptions
from headrace.loader.rows.plan import MOST_WINDOWS
from headrace.loader.sizes import (
    DEEPEST,
    MOST_THREADS,
    PREFETCH,
    PROCESS_BYTES,
    SPARE_SLOTS,
    requested_workers,
)

__all__ = ["RowSizes"]

#: Memory for processes and their row groups where there is no store: two of them by default, which
#: took 1 GB in all, Arrow's own memory included.
_PROCESSES_BYTES = 640 << 20
#: Memory for batches that give every process its next task; fewer where they are larger.
_DEEP_BYTES = 256 << 20


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
            limit = max(min(needed, available_memory() // 4), 2 * one + cache_bytes)
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
