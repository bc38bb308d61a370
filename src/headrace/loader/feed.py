"""Batches from a mixture: exactly shared, globally shuffled, resumable."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from headrace.config import Mixture
from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.slots import Lock, slot_bytes
from headrace.engine.statistics import Counters, EngineStatistics
from headrace.engine.stream import Filled, Stream
from headrace.loader.batch import Batch, EncodedBatch
from headrace.loader.endless import (
    EndlessLoader,
    ValidationSequence,
    make_engine,
    refuse_dataloader_worker,
)
from headrace.loader.mixture import OpenedMixture, to_validate
from headrace.loader.options import LoaderOptions, rank_and_world_size
from headrace.loader.plan import PendingBatch, Planner, Sample, SampleTask
from headrace.loader.sizes import VALIDATION_SLOTS, Sizes
from headrace.loader.work import DamagedFrame, SampleTasks, SampleWork, SkippedSamples
from headrace.reading.local import LocalFiles, shared_files
from headrace.sampling.sampler import ValidationOrder


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """A loader at one moment."""

    engine: EngineStatistics
    draws: int  #: draws consumed by all ranks together
    shares: dict[str, float]  #: of the sources, exactly
    too_short: dict[str, int]  #: episodes of each source that are shorter than a window
    skipped: int  #: samples that were replaced, with on_error="skip"
    damaged: tuple[DamagedFrame, ...]  #: the frames that were the reason, each once
    unchecked: tuple[str, ...] = ()  #: sources whose frames have no checksums (`index --quick`)


class MixtureFeed(EndlessLoader):
    """The batches of a mixture, with what outputs and measurements need beside them.

    `Loader` is its public face; `feed_of` gives the feed of a loader.
    """

    def __init__(
        self,
        mixture: Mixture | str | Path,
        options: LoaderOptions,
        *,
        files: LocalFiles | None = None,
        lock: Lock | None = None,
        encoded: bool = False,
    ) -> None:
        """`lock` makes memory ready for a device; with `encoded` frames may be left as JPEGs."""
        refuse_dataloader_worker()
        files = files or shared_files()
        self.options = options
        self.encoded = encoded
        self.mixture = opened = OpenedMixture(mixture, options, files)
        self.sources, self.names, self.sampler = opened.sources, opened.names, opened.sampler
        self.sizes = sizes = Sizes.of(options, self.sources, encoded=encoded)
        self._sample_planner = planner = Planner(
            opened.sources, opened.episodes, options, opened.sampler, sizes.threads
        )
        frames = sum(s.steps(e).sum() for s, e in zip(self.sources, opened.episodes, strict=True))
        self._tasks = SampleTasks(SkippedSamples(options.most_damaged(int(frames))), encoded)
        self._work = SampleWork(self.sources, options, files, sizes.threads)
        #: Told of every batch of training and how long it was waited for; must not raise.
        self.on_batch: Callable[[Batch, float], None] | None = None
        self._validation: tuple[Planner, int] | None = None
        use_one_thread_per_call()
        engine = make_engine(options, sizes, sizes.specs, self._work, self._tasks.perform)
        super().__init__(options, sizes, sizes.specs, planner, engine, lock)

    def __repr__(self) -> str:
        return (
            f"<MixtureFeed of {len(self.sources)} sources, batch {self.options.batch_size}, "
            f"{self._draws:,} draws consumed>"
        )

    # -- training ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among those that train together."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many train together."""
        return self._world_size

    def place(self, rank: int, world_size: int) -> None:
        """Set rank and world size, before the first batch."""
        self._rank, self._world_size = rank_and_world_size(rank, world_size)

    @property
    def ready(self) -> int:
        """Batches that wait to be taken: `next` would give one without a wait, or nearly so."""
        return 0 if self._stream is None else self._stream.statistics().ready

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        started = perf_counter()
        batch = self.take()
        if self.on_batch is not None:
            self.on_batch(batch, perf_counter() - started)
        return batch

    def take(self) -> Batch:
        """As `next`, but `on_batch` is left to the caller: for one who takes batches ahead."""
        return self._batch(self._next_filled())

    @property
    def prefetch(self) -> int:
        """Batches of training that may be on their way at first."""
        return self.sizes.slots

    @property
    def keep_encoded(self) -> bool:
        """Whether batches that are begun from now on hold JPEGs as they are; see `encoded`."""
        return self._tasks.keep_encoded

    @keep_encoded.setter
    def keep_encoded(self, keep: bool) -> None:
        self._tasks.keep_encoded = keep and self.encoded

    def refill(self, batch: EncodedBatch, rows: Sequence[int]) -> None:
        """Fill rows of a batch again and decode all of it here, by the rules for damaged samples.

        For rows with a JPEG that its decoder refuses. Called while the batch is held.
        """
        pending: PendingBatch = batch.pending
        plan = pending.planner.again(batch.draws[list(rows)], np.array(rows))
        arrays = {name: getattr(batch, name) for name in self.sizes.specs}
        filler, counters = self._work.open(self._engine.budget), Counters()
        try:
            self._tasks.perform(
                SampleTask(pending, plan),
                lambda matrix, _: filler.fill(matrix, arrays, counters),
            )
        finally:
            filler.close()

    def next_samples(self, count: int) -> list[Sample]:
        """Where the frames of the next draws lie, without drawing them (for measuring)."""
        draws = self.sampler.draw(np.arange(self._draws, self._draws + count))
        return self._sample_planner.plan(draws, np.arange(count)).samples()

    # -- validation ----------------------------------------------------------------------------

    def validation(self, limit_batches: int | None = None) -> Iterator[Batch]:
        """One pass over the validation splits in a fixed order, on the same threads and budget.

        Every source is in the first batches; the last batch may be shorter.
        """
        planner, length = self._validation_plan()
        if self.validation_rewinds:
            self._rewind()
        stream = self._open(
            ValidationSequence(
                planner, length, self._batch_size, self._rank, self._world_size, limit_batches
            ),
            max(1, self.sizes.validation_slots),
        )
        return _Pass(self, stream)

    @property
    def validation_rewinds(self) -> bool:
        """Whether a validation pass would now take the memory of prefetched batches."""
        return self._engine.budget.free < VALIDATION_SLOTS * slot_bytes(self.sizes.specs)

    def _rewind(self) -> None:
        """Give up prefetched batches of training; they are filled again when they are wanted."""
        if self._stream is not None:
            self._engine.drop(self._stream, wait=True)
            self._start, self._delivered = self._draws, 0
            self._stream = None

    def validation_length(self) -> int:
        """Samples of one validation pass, of all ranks together."""
        return self._validation_plan()[1]

    def _validation_plan(self) -> tuple[Planner, int]:
        if self._validation is None:
            chosen = to_validate(self.sources)
            none = np.empty(0, np.int64)
            episodes = [
                source.episodes(source.val_split or "") if source in chosen else none
                for source in self.sources
            ]
            items = [
                source.items(mine, all_pairs=True)
                for source, mine in zip(self.sources, episodes, strict=True)
            ]
            order = ValidationOrder(items, self.names)
            planner = Planner(self.sources, episodes, self.options, order, self.sizes.threads)
            self._validation = planner, order.length
        return self._validation

    # -- the rest ------------------------------------------------------------------------------

    def statistics(self) -> LoaderStatistics:
        """Frozen figures of everything so far."""
        return LoaderStatistics(
            engine=self._engine.statistics(),
            draws=self._draws,
            shares={
                name: float(places) / self.sampler.shares.block
                for name, places in zip(self.names, self.sampler.shares.places, strict=True)
            },
            too_short={
                source.name: int((source.steps(episodes) <= source.k).sum())
                for source, episodes in zip(self.sources, self.mixture.episodes, strict=True)
            },
            skipped=self._tasks.skipped.count,
            damaged=self._tasks.skipped.damaged,
            unchecked=self.mixture.unchecked,
        )

    def _batch(self, filled: Filled) -> Batch:
        pending, arrays = filled.about, filled.arrays
        if len(pending.draws) < self._batch_size:
            arrays = {name: array[: len(pending.draws)] for name, array in arrays.items()}
        about: dict[str, Any] = {"names": self.names, "draws": pending.draws, **arrays}
        if self.options.metadata == "full":
            about |= {"language": pending.language, "robot": pending.robot}
        return EncodedBatch(pending=pending, **about) if self.encoded else Batch(**about)

    def _fingerprint(self) -> dict[str, Any]:
        return self.mixture.fingerprint()


class _Pass(Iterator[Batch]):
    """One validation pass; its slots are freed when it ends or is let go."""

    def __init__(self, feed: MixtureFeed, stream: Stream) -> None:
        self._feed, self._stream = feed, stream
        self._finalizer = weakref.finalize(self, feed._engine.drop, stream)

    @property
    def ready(self) -> int:
        """Batches that wait to be taken."""
        return self._stream.statistics().ready

    def __next__(self) -> Batch:
        try:
            return self._feed._batch(next(self._stream))
        except BaseException as error:
            self._finalizer()
            if isinstance(error, StopIteration):
                self._feed.check_open()  # a pass that was cut off must not look like a whole one
            raise
