"""What a row loader is told, checked, and the memory that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.engine.memory import allowed_memory, available_memory
from headrace.engine.shared import sharing_is_possible
from headrace.engine.slots import ArraySpec, slot_bytes
from headrace.errors import BudgetError, UsageError
from headrace.jobs import allowed_cpus
from headrace.loader.rows.order import Shuffle
from headrace.loader.rows.plan import MOST_WINDOWS
from headrace.loader.settings import (
    DEEPEST,
    KEEP_FREE,
    MOST_THREADS,
    PREFETCH,
    PROCESS_BYTES,
    SPARE_SLOTS,
    parse_size,
    rank_and_world,
)

__all__ = ["RowSettings", "RowSizes"]

#: Memory for processes and their row groups where there is no store: two of them by default, which
#: took 1 GB in all, Arrow's own memory included.
_PROCESSES_BYTES = 640 << 20
#: Memory for batches that give every process its next task; fewer where they are larger.
_DEEP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class RowSettings:
    """A row loader's options, with the defaults filled in."""

    batch_size: int  #: windows a batch of this rank has
    seed: int
    shuffle: Shuffle
    open_pieces: int
    threads: int
    threads_given: bool
    processes: int  #: so many threads may pass their work on to a process
    budget: int | None
    keep_free: int
    rank: int
    world: int

    @staticmethod
    def checked(
        *,
        batch_size: int,
        seed: int,
        shuffle: Shuffle,
        open_pieces: int,
        threads: int | None,
        processes: bool,
        budget: int | str | None,
        keep_free: int | str | None,
        rank: int | None,
        world: int | None,
    ) -> RowSettings:
        """Check what a person wrote."""
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}", remedy="Give a number from 1 upwards")
        rank, world = rank_and_world(rank, world)
        count = threads or allowed_cpus()
        return RowSettings(
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            open_pieces=open_pieces,
            threads=count,
            threads_given=bool(threads),
            processes=count if processes and sharing_is_possible() else 0,
            budget=None if budget is None else parse_size(budget),
            keep_free=(
                min(KEEP_FREE, allowed_memory() // 8)
                if keep_free is None
                else parse_size(keep_free)
            ),
            rank=rank,
            world=world,
        )


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Memory: how many slots, the budget, and threads and processes that fit into it."""

    slots: int  #: at first
    most_slots: int  #: where steps are uneven
    budget: int
    threads: int
    processes: int

    @staticmethod
    def of(settings: RowSettings, specs: Mapping[str, ArraySpec], cache_bytes: int) -> RowSizes:
        """What batches and cached row groups need, within the budget."""
        one = slot_bytes(specs)
        # Every process has row groups of its own where there is no store.
        each = PROCESS_BYTES + cache_bytes
        processes = min(settings.processes, _PROCESSES_BYTES // each if cache_bytes else 1 << 20)
        least = PREFETCH + 2  # and one being filled, one with the consumer
        task = min(MOST_WINDOWS, settings.batch_size)
        busy = -(-3 * processes * task // (2 * settings.batch_size))  # batches: see `RowPlanner`
        wanted = max(least, min(busy + 1, _DEEP_BYTES // one))
        most = max(wanted, least + DEEPEST - PREFETCH)
        limit = settings.budget
        if limit is None:
            needed = (most + SPARE_SLOTS) * one + processes * each + cache_bytes
            limit = max(min(needed, available_memory() // 4), 2 * one + cache_bytes)
        room = limit - cache_bytes - (least - PREFETCH // 2) * one
        processes = max(0, min(processes, room // each))
        threads = settings.threads
        if not settings.threads_given:
            threads = min(threads, max(processes, MOST_THREADS))
        fit = (limit - cache_bytes - processes * each) // one
        if fit < 2:
            raise BudgetError(
                f"a budget of {limit / 2**20:.0f} MiB does not hold two batches of "
                f"{one / 2**20:.1f} MiB beside {cache_bytes / 2**20:.0f} MiB of row groups",
                remedy="Raise the budget, or lower batch_size or the set's `cache`",
            )
        slots = min(wanted, fit)
        return RowSizes(
            slots=slots,
            most_slots=max(slots, min(most, fit - SPARE_SLOTS)),
            budget=limit,
            threads=threads,
            processes=processes,
        )
