"""A Grain pipeline in the order that works, over headrace's order of samples.

    source -> shuffle -> transform and batch -> to_iter_dataset -> mp_prefetch

Draw numbers take the place of elements until a batch is made: the order is computed, not stored,
and a batch is read and transformed straight into its arrays. Grain brings the threads or worker
processes, the prefetching, and the iterator that checkpoints know.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.engine.machine import allowed_cpus
from headrace.errors import UsageError
from headrace.loader.options import RowOptions, Shuffle, rank_and_world_size
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.work import Outputs, Transform
from headrace.outputs.grain.framework import DatasetIterator, IterDataset, MapDataset, to_batches
from headrace.outputs.grain.sources import DrawnBatches, SampleSource, WindowSource
from headrace.sampling.ranks import draws_after
from headrace.sampling.sampler import SamplerState

__all__ = ["HostDraws", "Pipeline", "grain_pipeline", "map_dataset"]

_ENDLESS = 1 << 62  # Grain's own `repeat` gives such a length too
_MOST_THREADS = 8  # a transform is Python: more threads than this only wait for each other


class HostDraws(MapDataset):  # type: ignore[misc]
    """The draw numbers of one host, `batch_size` of each global batch, from `draws` on."""

    def __init__(self, length: int, draws: int, batch_size: int, rank: int, world: int) -> None:
        super().__init__()
        self._length = length
        self._draws, self._size, self._rank, self._world = draws, batch_size, rank, world

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return f"HostDraws(rank={self._rank}, world={self._world}, batch_size={self._size})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        batch, row = divmod(index, self._size)
        return self._draws + (batch * self._world + self._rank) * self._size + row


class Pipeline(IterDataset):  # type: ignore[misc]
    """Batches as a Grain `IterDataset`; further `.map` and the like may follow.

    Its iterators' state is headrace's: draws consumed by all hosts, seed, and a fingerprint of the
    data. It is the same on every host, and resumes with another number of hosts, threads, workers
    or another batch size. `plain()` is the same pipeline with Grain's own state.
    """

    def __init__(
        self,
        drawn: DrawnBatches,
        *,
        seed: int,
        batch_size: int,
        epochs: int | None,
        threads: int,
        workers: int,
        prefetch: int,
        worker_prefetch: int,
        rank: int,
        world: int,
    ) -> None:
        super().__init__()
        self._drawn, self._seed, self._size, self._epochs = drawn, seed, batch_size, epochs
        self._rank, self._world = rank, world
        self._options = {
            "threads": threads,
            "workers": workers,
            "prefetch": prefetch,
            "worker_prefetch": worker_prefetch,
        }

    def __str__(self) -> str:
        return f"Pipeline(batch_size={self._size}, rank={self._rank}, world={self._world})"

    def plain(self, draws: int = 0) -> Any:
        """Grain's own datasets and nothing else, from a number of draws on."""
        length = _ENDLESS
        if self._epochs is not None:
            left = max(0, self._epochs * self._drawn.pass_draws - draws)
            length = left // (self._size * self._world) * self._size
        numbers = HostDraws(length, draws, self._size, self._rank, self._world)
        batched = numbers.batch(self._size, drop_remainder=True, batch_fn=self._drawn)
        return to_batches(batched, **self._options)

    def __iter__(self) -> Any:
        return _Batches(self)

    def state_after(self, draws: int, batches: int) -> SamplerState:
        """The state when every host has had so many batches more."""
        consumed = draws_after(draws, batches, self._size, self._world)
        return SamplerState(consumed, self._seed, self._drawn.fingerprint())

    def check(self, state: Mapping[str, Any]) -> int:
        """Draws consumed, if the state belongs to this sequence."""
        loaded = SamplerState.from_dict(state)
        loaded.check(self._seed, self._drawn.fingerprint())
        return loaded.draws


class _Batches(DatasetIterator):  # type: ignore[misc]
    """Iterates over a pipeline; starts Grain's workers with the first batch."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._start = self._taken = 0
        self._inner: Any = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._inner is None:
            self._inner = iter(self._pipeline.plain(self._start))
        batch = next(self._inner)
        self._taken += 1
        return batch

    def __str__(self) -> str:
        return f"Batches({self._pipeline})"

    def get_state(self) -> dict[str, Any]:
        return self._pipeline.state_after(self._start, self._taken).to_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        draws = self._pipeline.check(state)
        self._end()
        self._start, self._taken = draws, 0

    def close(self) -> None:
        """End Grain's threads and processes."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None


class _Element:
    """One draw without the batch dimension."""

    def __init__(self, drawn: DrawnBatches) -> None:
        self._drawn = drawn

    def __call__(self, number: int) -> dict[str, Any]:
        return {name: values[0] for name, values in self._drawn([number]).items()}


def map_dataset(
    source: WindowSource | SampleSource,
    *,
    shuffle: Shuffle = "exact",
    open_pieces: int = RowOptions().open_pieces,
    epochs: int = 1,
) -> Any:
    """A source in headrace's order as a Grain `MapDataset`, for pipelines of one's own.

    It takes the place of `MapDataset.source(source).seed(seed).shuffle().repeat(epochs)`.
    """
    drawn = source.drawn(shuffle, open_pieces, world_size=1)
    numbers = HostDraws(epochs * drawn.pass_draws, 0, 1, 0, 1)
    return numbers.map(_Element(drawn))


def grain_pipeline(
    source: WindowSource | SampleSource | RowSet | str | os.PathLike[str],
    *,
    batch_size: int,
    transform: Transform | None = None,
    outputs: Outputs | None = None,
    many: bool | None = None,
    seed: int = 0,
    shuffle: Shuffle = "exact",
    open_pieces: int = RowOptions().open_pieces,
    epochs: int | None = None,
    num_threads: int | None = None,
    num_workers: int = 0,
    prefetch_buffer_size: int | None = None,
    per_worker_buffer_size: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
) -> Pipeline:
    """Batches of windows or samples, shuffled, by Grain's threads or worker processes.

    >>> batches = iter(grain_pipeline(hr.RowSet("train"), batch_size=256))  # doctest: +SKIP
    >>> batch = next(batches)                                               # doctest: +SKIP
    >>> state = batches.get_state()    # JSON, which checkpoints may keep   # doctest: +SKIP

    The batches are those of `hr.RowLoader` or `hr.Loader` with the same seed, whatever the numbers
    of threads and workers. `transform`, `outputs` and `many` are for windows, as there. epochs:
    passes, of which the last batch is dropped if it is short; None: without end. Buffers count
    batches. rank and world_size: this host among its peers, by default from the environment.
    """
    if not isinstance(source, (WindowSource, SampleSource)):
        source = WindowSource(source, transform, outputs, many=many, seed=seed)
    elif transform is not None or outputs is not None:
        raise UsageError(
            f"{type(source).__name__} has its transform already",
            remedy="Give `transform` and `outputs` to the source, or pass a RowSet here",
        )
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}", remedy="Give a number from 1 upwards")
    own_seed = source.work.seed if isinstance(source, WindowSource) else source.samples.sampler.seed
    if own_seed != seed:
        raise UsageError(
            f"the source has seed {own_seed} and the pipeline {seed}",
            remedy="Give both the same seed",
        )
    rank, world_size = rank_and_world_size(rank, world_size)
    threads = num_threads
    if threads is None:
        threads = 1 if num_workers else min(_MOST_THREADS, allowed_cpus())
    return Pipeline(
        source.drawn(shuffle, open_pieces, world_size),
        seed=seed,
        batch_size=batch_size,
        epochs=epochs,
        threads=threads,
        workers=num_workers,
        prefetch=2 * threads if prefetch_buffer_size is None else prefetch_buffer_size,
        worker_prefetch=per_worker_buffer_size,
        rank=rank,
        world=world_size,
    )
