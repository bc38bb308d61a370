"""The row loader: batches of transformed windows, globally shuffled, resumable."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from headrace.engine.budget import Budget
from headrace.engine.engine import Engine
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import Arrays, Lock
from headrace.engine.statistics import EngineStatistics
from headrace.engine.stream import Stream
from headrace.errors import UsageError
from headrace.formats.parquet.cache import CacheStatistics
from headrace.loader.rows.lane import RowLanes
from headrace.loader.rows.order import OPEN_PIECES, Shuffle, fingerprint_of, order_of
from headrace.loader.rows.plan import RowPlanner
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.settings import RowSettings, RowSizes
from headrace.loader.rows.work import Outputs, RowWork, Transform
from headrace.loader.sequence import TrainingSequence
from headrace.sampling.hashed import Ints
from headrace.sampling.ranks import draws_after
from headrace.sampling.state import SamplerState

__all__ = ["RowLoader", "RowLoaderStatistics"]

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class RowLoaderStatistics:
    """A row loader at one moment."""

    engine: EngineStatistics
    draws: int  #: windows consumed by all ranks together
    cache: CacheStatistics  #: row groups of this process; worker processes have their own


class RowLoader:
    """Endless batches of windows of rows.

    >>> import headrace as hr
    >>> with hr.RowLoader("measurements/train", batch_size=256, seed=0) as loader:  # doctest: +SKIP
    ...     for batch in loader:
    ...         train_step(batch["rtt"])       # float64 [256, 64]

    A batch is a dict of arrays: what `transform(rows, window, epoch, seed, out_rows)` wrote into
    `out_rows`, whose shapes `outputs` gives, or the columns themselves. All chance in a transform
    should come from (seed, epoch, window): then threads, hosts and resuming do not matter. With
    `many` (or `transform.many = True`) it is given up to 256 windows at once: numpy likes that.

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
        self.settings = settings
        check_hosts(len(self.rows), settings.world)
        self._order = order_of(self.rows, shuffle, seed, open_pieces)
        if shuffle == "exact":
            self.rows.fill_store()  # its first batch has windows of nearly every row group
        work = RowWork(self.rows, transform, outputs, seed, many=many)
        self._specs = work.specs(batch_size)
        cache_bytes = self.rows.cache_bytes
        self._sizes = sizes = RowSizes.of(settings, self._specs, cache_bytes)
        self._lock = lock
        self._start = 0  # draws consumed before the stream began
        self._delivered = 0
        self._stream: Stream | None = None
        budget_ = Budget(sizes.budget)
        budget_.charge(cache_bytes, "row groups in memory")
        shared = SharedMemory() if sizes.processes else None
        self._engine = Engine(
            sizes.threads,
            RowLanes(work, batch_size, budget_, sizes.processes, shared),
            budget_,
            shared=shared,
            keep_free=settings.keep_free,
            notice=_log.warning,
        )
        self._planner = RowPlanner(
            self.rows.windows,
            self._order,
            batch_size,
            sizes.threads,
            sizes.slots - 1,  # the consumer has one
            self._engine.seconds_each,
        )
        self._finalizer = weakref.finalize(self, self._engine.close)

    def __repr__(self) -> str:
        return (
            f"<RowLoader of {len(self.rows):,} windows, batch {self.settings.batch_size}, "
            f"{self._draws:,} draws consumed>"
        )

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        if self._stream is None:
            settings = self.settings
            planner = cast(Any, self._planner)
            sequence = TrainingSequence(
                planner, self._draws, settings.batch_size, settings.rank, settings.world
            )
            self._stream = self._engine.stream(
                sequence, self._specs, self._sizes.slots, self._lock, most=self._sizes.most_slots
            )
            self._start, self._delivered = self._draws, 0
        filled = next(self._stream)
        self._delivered += 1
        return filled.arrays

    @property
    def ready(self) -> int:
        """Batches that wait to be taken: `next` would give one without a wait, or nearly so."""
        return 0 if self._stream is None else self._stream.statistics().ready

    def next_windows(self, count: int) -> tuple[Ints, Ints]:
        """Passes and windows of the next draws of all ranks, without drawing them."""
        return self._order.draw(np.arange(self._draws, self._draws + count))

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands: plain values, the same on every rank."""
        return SamplerState(self._draws, self.settings.seed, self._fingerprint()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; batch size, ranks and threads may be others."""
        loaded = SamplerState.from_dict(state)
        loaded.check(self.settings.seed, self._fingerprint())
        if self._stream is not None:
            self._engine.drop(self._stream)
            self._stream = None
        self._start, self._delivered = loaded.draws, 0

    def statistics(self) -> RowLoaderStatistics:
        """Frozen figures of everything so far."""
        return RowLoaderStatistics(
            self._engine.statistics(), self._draws, self.rows.access.statistics()
        )

    def close(self) -> None:
        """End the threads and give the memory back."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _draws(self) -> int:
        """Windows consumed by all ranks together."""
        settings = self.settings
        return draws_after(self._start, self._delivered, settings.batch_size, settings.world)

    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint_of(self.rows, self.settings.shuffle, self.settings.open_pieces)


def check_hosts(windows: int, world: int) -> None:
    """Every host has a window of its own in every batch."""
    if world > windows:
        raise UsageError(
            f"{world} hosts share {windows} windows: some would train on the same ones at once",
            remedy="Use fewer hosts, more files, or a smaller window or stride",
        )
