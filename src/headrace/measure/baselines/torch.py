"""torch's `DataLoader` over the catalogs: a map-style dataset read by worker processes.

Tuned as its documentation advises: as many workers as CPUs (DataLoader warns of more),
`persistent_workers`, `prefetch_factor` 2 (its default), batches fetched at once by `__getitems__`
and put together in shared memory by the worker, so that the parent copies nothing.

The order is headrace's own: a batch sampler that counts draws, and the dataset looks up which
sample a draw is. torch's `WeightedRandomSampler` would draw with replacement, hold a weight for
every pair in memory, and stop at 2^24 pairs (the limit of `torch.multinomial`), which a mixture of
real size exceeds. So this is the best that a DataLoader can be given, and its samples are exactly
those of the native loader, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loader.samples import MixtureSamples
from headrace.measure.baselines.baseline import Baseline, Delivery, Knob, job_workers
from headrace.measure.job import Job

OPTIONS: dict[str, Any] = {
    "workers": None,  # as many as CPUs: DataLoader's own "suggested max number of worker"
    "prefetch_factor": 2,  # DataLoader's default
}


def worker_knobs(backend: str, cpus: int) -> tuple[Knob, ...]:
    """What a search tries of backends that are torch's DataLoader underneath.

    Workers around the number of CPUs, which is the default; batches that wait in each.

    >>> [knob.values for knob in worker_knobs("torch", 8)]
    [(4, 16, 7), (1, 4, 8)]
    """
    workers = dict.fromkeys((max(1, cpus // 2), 2 * cpus, max(1, cpus - 1)))
    workers.pop(cpus, None)
    return (
        Knob(f"{backend}.workers", tuple(workers)),
        Knob(f"{backend}.prefetch_factor", (1, 4, 8)),
    )


def worker_settings(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """`OPTIONS` as DataLoader takes them."""
    workers = job_workers(job) if options["workers"] is None else options["workers"]
    # It refuses a prefetch factor without workers.
    return {
        "num_workers": workers,
        "prefetch_factor": options["prefetch_factor"] if workers else None,
    }


def fill_frames(
    shape: tuple[int, ...], fill: Callable[[NDArray[np.uint8]], dict[str, Any]]
) -> dict[str, Any]:
    """What `fill` returns, with the frames it has filled as a tensor.

    In a worker the tensor is shared memory from the start, as `default_collate` does it: others
    are copied to shared memory on their way to the parent, 25 MB for a batch of 64 pairs at
    256x256.
    """
    import torch

    if torch.utils.data.get_worker_info() is None:
        tensor = torch.empty(shape, dtype=torch.uint8)
    else:
        storage: Any = torch.UntypedStorage  # what `default_collate` calls is not typed
        memory = storage._new_shared(int(np.prod(shape)))
        tensor = torch.empty(0, dtype=torch.uint8).set_(memory).reshape(shape)
    return {**fill(tensor.numpy()), "frames": tensor}


def numpy_frames(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with its frames as an array; nothing is copied."""
    return {**batch, "frames": batch["frames"].numpy()}


def identity(batch: Any) -> Any:
    """A collate function for batches that the dataset has put together."""
    return batch


class _Draws:
    """Map style: draw numbers to samples, a batch at a time."""

    def __init__(self, samples: MixtureSamples) -> None:
        self._samples = samples

    def __getitems__(self, numbers: list[int]) -> dict[str, Any]:
        samples = self._samples
        shape = (len(numbers), *samples.specs["frames"].shape[1:])
        draws = samples.sampler.draw(numbers)
        fields = fill_frames(shape, lambda frames: samples.read(draws, frames))
        return {**fields, "draws": np.array(numbers)}

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])


def _open(job: Job, _: Path | None) -> AbstractContextManager[Delivery]:
    from torch.utils.data import DataLoader

    settings = worker_settings(job, BASELINE.with_defaults(job.options))
    samples = MixtureSamples(job.mixture, job.loader)
    workers, size = settings["num_workers"], job.loader.batch_size

    def start() -> Iterator[dict[str, Any]]:
        dataset: Any = _Draws(samples)
        batches: Any = (list(range(first, first + size)) for first in count(0, size))
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=identity,
            persistent_workers=workers > 0,
            **settings,
        )
        return map(numpy_frames, iter(loader))

    return closing(Delivery(samples.names, start, threads=workers, workers=workers))


BASELINE = Baseline(
    name="torch",
    needs=("torch",),
    install="pip install 'headrace[train]'",
    shuffle="global, every pair equally likely (headrace's sampler as the batch sampler)",
    open=_open,
    options=OPTIONS,
    knobs=lambda cpus: worker_knobs("torch", cpus),
)
