"""torch's `DataLoader` over the catalogs: a map-style dataset read by worker processes.

Tuned as its documentation has it: as many workers as CPUs (more is what DataLoader warns of),
`persistent_workers`, `prefetch_factor` 2 (its default), batches fetched at once by `__getitems__`
and put together in shared memory by the worker, so that the parent copies nothing.

The order is headrace's own: a batch sampler that counts draws, and the dataset looks up which
sample a draw is. torch's `WeightedRandomSampler` would draw with replacement, hold a weight for
every pair in memory, and stop at 2^24 pairs (the limit of `torch.multinomial`), which a mixture of
real size passes. So this is the best that a DataLoader can be given, and its samples are exactly
those of the native loader, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from headrace.measure.baselines.baseline import Baseline
from headrace.measure.baselines.delivery import Delivery, checked_options
from headrace.measure.baselines.samples import Samples, job_threads
from headrace.measure.baselines.torch_memory import as_it_is, numpy_frames, with_frames
from headrace.measure.baselines.worker_knobs import worker_knobs
from headrace.measure.job import Job

__all__ = ["BASELINE"]

_OPTIONS: dict[str, Any] = {
    "workers": None,  # as many as CPUs: DataLoader's own "suggested max number of worker"
    "prefetch_factor": 2,  # DataLoader's default
}


class _Draws:
    """Map style: draw numbers to samples, a batch at a time."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitems__(self, numbers: list[int]) -> dict[str, Any]:
        samples = self._samples
        shape = (len(numbers), *samples.specs["frames"].shape[1:])
        draws = samples.sampler.draw(numbers)
        fields = with_frames(shape, lambda frames: samples.read(draws, frames))
        return {**fields, "draws": np.array(numbers)}

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])


class _Batches:
    """Draw numbers of one batch after the other, without end."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, first + self._size)) for first in count(0, self._size))


@contextmanager
def _open(job: Job, converted: Path | None) -> Iterator[Delivery]:
    from torch.utils.data import DataLoader

    del converted
    options = checked_options(job, "torch", _OPTIONS)
    samples = Samples(job)
    workers = job_threads(job) if options["workers"] is None else options["workers"]
    dataset: Any = _Draws(samples)
    batches: Any = _Batches(job.batch_size)

    def start() -> Iterator[dict[str, Any]]:
        loader: Any = DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=as_it_is,
            persistent_workers=workers > 0,
            prefetch_factor=options["prefetch_factor"] if workers else None,
        )
        return map(numpy_frames, iter(loader))

    with closing(Delivery(samples.names, start, threads=workers, workers=workers)) as delivery:
        yield delivery


BASELINE = Baseline(
    name="torch",
    needs=("torch",),
    install="pip install 'headrace[train]'",
    shuffle="global, every pair equally likely (headrace's sampler as the batch sampler)",
    open=_open,
    options=_OPTIONS,
    knobs=lambda cpus: worker_knobs("torch", cpus),
)
