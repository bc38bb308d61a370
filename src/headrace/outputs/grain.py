"""Catalogs as Grain datasets: random access, headrace's order, and complete pipelines.

>>> from headrace.outputs.grain import grain_pipeline
>>> import headrace as hr
>>> dataset = grain_pipeline(hr.RowSet("measurements/train"), batch_size=256)  # doctest: +SKIP
>>> for batch in dataset:                                                      # doctest: +SKIP
...     train_step(batch)

The stages of a pipeline, in the order in which Grain needs them:

    source -> shuffle -> transform and batch -> to_iter_dataset -> mp_prefetch

Elements are draw numbers until a batch is made: the order is computed, not stored, and a batch is
read and transformed straight into its arrays. Grain provides the threads or worker processes, the
prefetching, and the iterator that checkpoints save.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import numpy as np

from headrace.config import Mixture
from headrace.engine.machine import allowed_cpus
from headrace.engine.statistics import Counters
from headrace.errors import UsageError
from headrace.formats.parquet.columns import Rows
from headrace.loader.options import (
    LoaderFields,
    LoaderOptions,
    RowFields,
    RowOptions,
    changed_options,
    rank_and_world_size,
)
from headrace.loader.rows.loader import check_hosts
from headrace.loader.rows.plan import RowPlanner, fingerprint_of, order_of
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.work import RowTransform, RowWork
from headrace.loader.samples import MixtureSamples
from headrace.sampling.ranks import draws_after
from headrace.sampling.sampler import SamplerState

try:
    from grain import DatasetIterator, IterDataset, MapDataset
except ModuleNotFoundError as error:
    if error.name != "grain":
        raise
    raise UsageError(
        "pipelines for JAX (headrace.outputs.grain) need grain, which is not installed",
        remedy="pip install 'headrace[jax]'",
    ) from None

if TYPE_CHECKING:  # Grain has no types
    DatasetIterator = IterDataset = MapDataset = Any

__all__ = [
    "Pipeline",
    "SampleSource",
    "WindowSource",
    "grain_pipeline",
    "map_dataset",
    "to_batches",
]

#: What becomes of the windows at the end of the epochs that do not fill a batch of every host.
Remainder: TypeAlias = Literal["drop", "pad"]

_ENDLESS = 1 << 62  # Grain's own `repeat` gives such a length too
_MOST_THREADS = 8  # transforms hold Python's lock: more threads only wait for each other
#: Options of headrace's own loaders that have no meaning for Grain.
_OF_GRAIN = ("workers", "memory", "keep_free")


# -- sources -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sequence:
    """An endless sequence of draws that can be read in batches, on any thread of any process."""

    read: Callable[[Sequence[int]], dict[str, Any]]  #: the draws with these numbers, as one batch
    seed: int
    fingerprint: Mapping[str, Any]  #: what the sequence depends on beside the seed
    pass_draws: int  #: draws that make one pass

    def one(self, number: int) -> dict[str, Any]:
        return _first_row(self.read([number]))


def _first_row(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[0] for name, values in batch.items()}


def _read_padded(
    read: Callable[[Sequence[int]], dict[str, Any]], total: int, numbers: Sequence[int]
) -> dict[str, Any]:
    """A batch of the draws below `total`; zeros take the place of the others, which come last."""
    real = [number for number in numbers if number < total]
    found = {}
    for name, values in read(real or [0]).items():
        found[name] = np.zeros((len(numbers), *values.shape[1:]), values.dtype)
        found[name][: len(real)] = values[: len(real)]
    return found


class WindowSource:
    """Windows of rows for Grain; element i is window i, transformed.

    It can be used wherever Grain takes a `RandomAccessDataSource`: it can be sent to worker
    processes, and its repr, which Grain compares with that of a checkpoint, is the same in every
    process and folder. `grain_pipeline` and `map_dataset` add headrace's own order.

    >>> source = WindowSource(hr.RowSet("train", columns=["rtt"]))  # doctest: +SKIP
    >>> grain.MapDataset.source(source).seed(0).shuffle()[0]["rtt"]  # doctest: +SKIP
    """

    def __init__(
        self,
        rows: RowSet | str | os.PathLike[str],
        transform: RowTransform | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.rows = rows if isinstance(rows, RowSet) else RowSet(rows)
        self.seed = seed
        self.work = RowWork(self.rows, transform, seed)

    def __repr__(self) -> str:
        outputs = ", ".join(self.work.outputs)
        return f"WindowSource({self.rows!r}, seed {self.seed}, {outputs})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, window: int) -> Rows:
        length = len(self)
        if not -length <= window < length:
            raise IndexError(f"window {window} of {length}")
        return self.work.one(int(window) % length, epoch=0)

    def _sequence(self, options: RowOptions) -> _Sequence:
        order = order_of(self.rows, options.shuffle, self.seed, options.open_pieces)
        if options.shuffle == "exact":
            self.rows.fill_store()
        return _Sequence(
            _ReadWindows(self.work, RowPlanner(self.rows.windows, order)),
            self.seed,
            fingerprint_of(self.rows, options.shuffle, options.open_pieces),
            len(self.rows),
        )


class _ReadWindows:
    def __init__(self, work: RowWork, planner: RowPlanner) -> None:
        self._work, self._planner = work, planner

    def __call__(self, numbers: Sequence[int]) -> dict[str, Any]:
        plan = self._planner.plan(np.array(numbers, np.int64))
        plan.row[:] = np.arange(len(plan))
        arrays = {
            name: np.empty(spec.shape, spec.dtype)
            for name, spec in self._work.specs(len(plan)).items()
        }
        self._work.fill(plan.matrix, arrays, Counters())
        return arrays


class SampleSource:
    """Samples of a mixture of RLDS datasets for Grain; element i is draw i of the mixture.

    A mixture is endless; its length here is that of all its samples together, each once. What an
    element holds is what `hr.Batch` has, without the batch dimension. Options are the fields of
    `hr.LoaderOptions` that say what a sample is: image_size, seed, frames, metadata, action_chunk,
    resize.

    >>> source = SampleSource("oxe29.yaml", image_size=256, seed=0)  # doctest: +SKIP
    >>> grain.MapDataset.source(source)[0]["frames"].shape           # doctest: +SKIP
    (2, 256, 256, 3)
    """

    def __init__(self, mixture: Mixture | str | Path, **changes: Unpack[LoaderFields]) -> None:
        if not isinstance(mixture, Mixture):
            mixture = Mixture.load(mixture)
        others = ("batch_size", "rank", "world_size", "on_error", "max_errors")
        _refuse(changes, (*_OF_GRAIN, *others), "SampleSource")
        options = changed_options(LoaderOptions, LoaderOptions(batch_size=1, workers=1), changes)
        self.samples = MixtureSamples(mixture, options)
        self.names = self.samples.names
        self.seed = options.seed
        self._length = sum(items.length for items in self.samples.items)

    def __repr__(self) -> str:
        height, width = self.samples.options.size
        return (
            f"SampleSource({len(self.names)} sources, {self._length} samples, "
            f"{height}x{width}, seed {self.seed})"
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, draw: int) -> dict[str, Any]:
        if not -self._length <= draw < self._length:
            raise IndexError(f"sample {draw} of {self._length}")
        return _first_row(self._read([int(draw) % self._length]))

    def _sequence(self, options: RowOptions) -> _Sequence:
        del options  # the order of a mixture is always the exact one
        return _Sequence(self._read, self.seed, self.samples.fingerprint(), self._length)

    def _read(self, numbers: Sequence[int]) -> dict[str, Any]:
        values = self.samples.read(self.samples.sampler.draw(np.array(numbers, np.int64)))
        return {
            name: np.array(value) if isinstance(value, list) else value  # texts
            for name, value in values.items()
        }


def _refuse(changes: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for name in names:
        if name in changes:
            raise UsageError(
                f"{where} has no option {name!r}, as the batches are made by Grain",
                remedy="`grain_pipeline` has batch_size, num_threads, num_workers, rank and more",
            )


# -- pipelines -----------------------------------------------------------------------------------


class _HostBatches(MapDataset):  # type: ignore[misc]
    """The draw numbers of one host, `batch_size` of each global batch, from `draws` on."""

    def __init__(
        self, batches: int, draws: int, batch_size: int, rank: int, world_size: int
    ) -> None:
        super().__init__()
        self._batches = range(batches)
        self._draws, self._size, self._rank, self._world_size = draws, batch_size, rank, world_size

    def set_slice(self, slice_: slice, sequential_slice: bool = False) -> None:
        """Grain calls this in a worker process, for `sequential_slice` alone."""
        assert sequential_slice
        worker, workers, batches = slice_.start, slice_.step, len(self._batches)
        self._batches = self._batches[
            batches * worker // workers : batches * (worker + 1) // workers
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __str__(self) -> str:
        return f"HostBatches(rank={self._rank}, world={self._world_size}, batch_size={self._size})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        before = self._batches[index] * self._world_size + self._rank
        first = self._draws + before * self._size
        return range(first, first + self._size)


class Pipeline(IterDataset):  # type: ignore[misc]
    """Batches as a Grain `IterDataset`; further `.map` and the like may follow.

    Its iterators' state is headrace's: draws consumed by all hosts, seed, and a fingerprint of the
    data. It is the same on every host, and resumes with another number of hosts, threads, workers
    or another batch size. `plain()` is the same pipeline with Grain's own state.
    """

    def __init__(
        self,
        sequence: _Sequence,
        batch_size: int,
        rank: int,
        world_size: int,
        epochs: int | None,
        remainder: Remainder,
        reading: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._sequence, self._size, self._epochs = sequence, batch_size, epochs
        self._rank, self._world_size = rank, world_size
        self._padded = remainder == "pad"
        self._reading = reading

    def __str__(self) -> str:
        return f"Pipeline(batch_size={self._size}, rank={self._rank}, world={self._world_size})"

    def plain(self, draws: int = 0) -> Any:
        """Grain's own datasets and nothing else, from a number of draws on."""
        batches, read = _ENDLESS, self._sequence.read
        if self._epochs is not None:
            total = self._epochs * self._sequence.pass_draws
            batches, rest = divmod(max(0, total - draws), self._size * self._world_size)
            if self._padded:
                batches, read = batches + bool(rest), partial(_read_padded, read, total)
        numbers = _HostBatches(batches, draws, self._size, self._rank, self._world_size)
        return to_batches(numbers.map(read), **self._reading)

    def __iter__(self) -> Any:
        # Slices in sequence are not headrace's order, so what was consumed is not a number of it.
        return iter(self.plain()) if self._reading["sequential_slice"] else _Batches(self)

    def state_after(self, draws: int, batches: int) -> SamplerState:
        """The state after this many more batches on every host."""
        consumed = draws_after(draws, batches, self._size, self._world_size)
        return SamplerState(consumed, self._sequence.seed, self._sequence.fingerprint)

    def check(self, state: Mapping[str, Any]) -> int:
        """Draws consumed, if the state belongs to this sequence."""
        loaded = SamplerState.from_dict(state)
        loaded.check(self._sequence.seed, self._sequence.fingerprint)
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


def to_batches(
    dataset: Any,
    *,
    threads: int,
    prefetch: int,
    workers: int = 0,
    worker_prefetch: int = 2,
    worker_init_fn: Callable[[int, int], None] | None = None,
    sequential_slice: bool = False,
) -> Any:
    """Random access to batches, as an iteration: by threads, or by worker processes.

    `dataset` is a `MapDataset` whose elements are batches; `prefetch` counts them too. Worker
    processes come after `to_iter_dataset`: `mp_prefetch` divides what is before it among them, so
    that each makes whole batches, and gives them back in order.
    """
    import grain
    from absl import flags

    read = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    batches = dataset.to_iter_dataset(read)
    if not workers:
        return batches
    if not flags.FLAGS.is_parsed():  # Grain's workers read them; `absl.app.run` would parse them
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=worker_prefetch
    )
    return batches.mp_prefetch(options, worker_init_fn, sequential_slice)


def map_dataset(
    source: WindowSource | SampleSource, *, epochs: int = 1, **order: Unpack[RowFields]
) -> Any:
    """A source in headrace's order as a Grain `MapDataset`, for custom pipelines.

    It takes the place of `MapDataset.source(source).seed(seed).shuffle().repeat(epochs)`. `order`:
    `shuffle` and `open_pieces`, as in `hr.RowLoader`.
    """
    others = ("batch_size", "seed", "rank", "world_size")
    _refuse(order, (*_OF_GRAIN, *others), "map_dataset")
    sequence = source._sequence(changed_options(RowOptions, None, order))
    return MapDataset.range(epochs * sequence.pass_draws).map(sequence.one)


def grain_pipeline(
    source: WindowSource | SampleSource | RowSet | str | os.PathLike[str],
    *,
    transform: RowTransform | None = None,
    epochs: int | None = None,
    num_threads: int | None = None,
    num_workers: int = 0,
    prefetch_buffer_size: int | None = None,
    per_worker_buffer_size: int = 2,
    worker_init_fn: Callable[[int, int], None] | None = None,
    sequential_slice: bool = False,
    remainder: Remainder = "drop",
    **changes: Unpack[RowFields],
) -> Pipeline:
    """Batches of windows or samples, shuffled, by Grain's threads or worker processes.

    >>> batches = iter(grain_pipeline(hr.RowSet("train"), batch_size=256))  # doctest: +SKIP
    >>> batch = next(batches)                                               # doctest: +SKIP
    >>> state = batches.get_state()    # JSON, for checkpoints              # doctest: +SKIP

    The batches are those of `hr.RowLoader` or `hr.Loader` with the same seed, whatever the numbers
    of threads and workers. `transform` is for windows, as there. epochs: passes; None: without end.
    A last batch that is short is dropped, or filled up with zeros (`remainder="pad"`): an
    evaluation sees every window once with `epochs=1, shuffle="none", remainder="pad"`. Buffers
    count batches. Further options are those of `hr.RowLoader`: batch_size, seed, shuffle,
    open_pieces, rank and world_size (this host; by default from the environment).

    `worker_init_fn(worker, workers)` is called in each of Grain's processes. `sequential_slice`
    gives each of them a consecutive part of the epochs: another order, which depends on
    num_workers, and iterators with Grain's own state.
    """
    _refuse(changes, _OF_GRAIN, "grain_pipeline")
    options = changed_options(RowOptions, None, changes)
    if not isinstance(source, (WindowSource, SampleSource)):
        source = WindowSource(source, transform, seed=options.seed)
    elif transform is not None:
        raise UsageError(
            f"{type(source).__name__} has its transform already",
            remedy="Give `transform` to the source, or pass a RowSet here",
        )
    if source.seed != changes.get("seed", source.seed):
        raise UsageError(
            f"the source has seed {source.seed} and the pipeline {options.seed}",
            remedy="Give the seed to the source alone",
        )
    if epochs is None and (remainder == "pad" or sequential_slice):
        name = "sequential_slice" if sequential_slice else "remainder='pad'"
        raise UsageError(
            f"{name} is given without epochs: an endless sequence has no end to cut or to fill",
            remedy="Give epochs=1",
        )
    rank, world_size = rank_and_world_size(options.rank, options.world_size)
    check_hosts(len(source), world_size)
    threads = num_threads
    if threads is None:
        threads = 1 if num_workers else min(_MOST_THREADS, allowed_cpus())
    reading = {
        "threads": threads,
        "prefetch": 2 * threads if prefetch_buffer_size is None else prefetch_buffer_size,
        "workers": num_workers,
        "worker_prefetch": per_worker_buffer_size,
        "worker_init_fn": worker_init_fn,
        "sequential_slice": sequential_slice,
    }
    sequence = source._sequence(options)
    return Pipeline(sequence, options.batch_size, rank, world_size, epochs, remainder, reading)
