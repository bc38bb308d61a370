"""The row loader: batches of transformed windows, globally shuffled, resumable."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine.budget import Budget
from headrace.engine.engine import Engine
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import Arrays, Lock
from headrace.engine.statistics import EngineStatistics
from headrace.errors import UsageError
from headrace.formats.parquet.cache import CacheStatistics
from headrace.loader.endless import EndlessLoader
from headrace.loader.rows.lane import RowLanes
from headrace.loader.rows.order import OPEN_PIECES, Shuffle, fingerprint_of, order_of
from headrace.loader.rows.plan import RowPlanner
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.settings import RowSettings, RowSizes
from headrace.loader.rows.work import Outputs, RowWork, Transform
from headrace.sampling.bijection import Ints

__all__ = ["RowLoader", "RowLoaderStatistics"]

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class RowLoaderStatistics:
    """A row loader at one moment."""

    engine: EngineStatistics
    draws: int  #: windows consumed by all ranks together
    cache: CacheStatistics  #: row groups of this process; worker processes have their own


class RowLoader(EndlessLoader):
    """Endless batches of windows of rows.

    >>> import headrace as hr
    >>> with hr.RowLoader("measurements/train", batch_size=256, seed=0) as loader:  # doctest: +SKIP
    ...     for batch in loader:
    ...         train_step(batch["rtt"])       # float64 [256, 64]

    A batch is a dict of arrays: what `transform(rows, window, epoch, seed, out_rows)` wrote into
    `out_rows` (zeros at first), whose shapes `outputs` gives, or the columns themselves. All chance
    in a transform should come from (seed, epoch, window): then threads, hosts and resuming do not
    matter. With `many` (or `transform.many = True`) it is given up to 256 windows at once: numpy
    likes that.

    shuffle: "exact", "local" (few row groups open at a time) or "none". A second `for` goes on
    where the first stopped. Batches are views of pooled memory: let go of them, or copy them.
    """

    def __init__(
        self,
        rows: RowSet | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        batch_size: int,
        transform: Transform | None = None,
        outputs: Outputs | None = None,
        many: bool | None = None,
        seed: int = 0,
        shuffle: Shuffle = "exact",
        open_pieces: int = OPEN_PIECES,
        threads: int | None = None,
        processes: bool = True,
        budget: int | str | None = None,
        keep_free: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        lock: Lock | None = None,
    ) -> None:
        settings = RowSettings.checked(
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            open_pieces=open_pieces,
            threads=threads,
            processes=processes,
            budget=budget,
            keep_free=keep_free,
            rank=rank,
            world=world,
        )
        self.rows = rows if isinstance(rows, RowSet) else RowSet(rows)
        self.settings: RowSettings = settings
        check_hosts(len(self.rows), settings.world)
        self._order = order_of(self.rows, shuffle, seed, open_pieces)
        if shuffle == "exact":
            self.rows.fill_store()  # its first batch has windows of nearly every row group
        work = RowWork(self.rows, transform, outputs, seed, many=many)
        specs = work.specs(batch_size)
        cache_bytes = self.rows.cache_bytes
        sizes = RowSizes.of(settings, specs, cache_bytes)
        budget_ = Budget(sizes.budget)
        budget_.charge(cache_bytes, "row groups in memory")
        shared = SharedMemory() if sizes.processes else None
        engine = Engine(
            sizes.threads,
            RowLanes(work, batch_size, budget_, sizes.processes, shared),
            budget_,
            shared=shared,
            keep_free=settings.keep_free,
            notice=_log.warning,
        )
        planner = RowPlanner(
            self.rows.windows,
            self._order,
            batch_size,
            sizes.threads,
            sizes.slots - 1,  # the consumer has one
            engine.seconds_each,
        )
        super().__init__(sizes, specs, planner, engine, lock)

    def __repr__(self) -> str:
        return (
            f"<RowLoader of {len(self.rows):,} windows, batch {self.settings.batch_size}, "
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
        return fingerprint_of(self.rows, self.settings.shuffle, self.settings.open_pieces)


def check_hosts(windows: int, world: int) -> None:
    """Every host has a window of its own in every batch."""
    if world > windows:
        raise UsageError(
            f"{world} hosts share {windows} windows: some would train on the same ones at once",
            remedy="Use fewer hosts, more files, or a smaller window or stride",
        )
