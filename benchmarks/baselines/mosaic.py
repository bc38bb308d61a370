"""MosaicML Streaming: MDS shards of finished pairs, a `Stream` for each source.

As its documentation has it: `proportion` gives the weight of a stream, `shuffle=True` with the
default algorithm (py1e) and block size, `batch_size` told to the dataset, workers of torch's
DataLoader, shards of 64 MiB without compression (local disk, frames are compressed already).
Batches take samples of all streams (`batching_method` random). With proportions an epoch draws
samples of small streams several times and those of large ones not at all.

Both frames of a pair are stored, so nearly every frame is on disk twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from benchmarks.baselines.stored import INSTALL, Collate, Converter, Stored, refuse_drawn_starts
from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Baseline, Conversion, Delivery
from headrace.measure.baselines.torch import OPTIONS, numpy_frames, worker_knobs, worker_settings
from headrace.measure.job import Job

__all__ = ["BASELINE"]

_OPTIONS: dict[str, Any] = {
    **OPTIONS,  # those of torch's DataLoader
    # Samples of an epoch. Its own default is the number of samples stored; below this one every
    # epoch's beginning, at which workers are idle, would show in a benchmark.
    "epoch_size": 65_536,
}


def _streaming() -> Any:
    """The module; what it needs may be installed and not work, as torchvision for another torch."""
    try:
        import streaming
    except Exception as error:
        raise UsageError(
            f"MosaicML Streaming is installed but cannot be imported: {error}",
            remedy="It imports torchvision, which must be built for the torch that is installed",
        ) from error
    return streaming


def _epochs(loader: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from map(numpy_frames, loader)


def _convert(job: Job, folder: Path) -> Conversion:
    refuse_drawn_starts(job, "MosaicML Streaming")
    streaming = _streaming()
    converter = Converter(job)
    stored = converter.stored
    columns = {f"{place}.frame": "bytes" for place in range(stored.frames)}
    for number in range(len(stored.names)):
        part = stored.part(folder, number)
        with streaming.MDSWriter(out=str(part), columns={**columns, "about": "bytes"}) as writer:
            for pair in converter.shuffled(number):
                frames = dict(zip(columns, pair.frames, strict=True))
                writer.write({**frames, "about": pair.about})
    return converter.finish(folder)


def _open(job: Job, converted: Path | None) -> AbstractContextManager[Delivery]:
    from torch.utils.data import DataLoader

    refuse_drawn_starts(job, "MosaicML Streaming")
    streaming = _streaming()
    stored = Stored.load(converted, job)
    assert converted is not None
    options = BASELINE.with_defaults(job.options)
    settings = worker_settings(job, options)
    workers = settings["num_workers"]
    parts = [str(stored.part(converted, number)) for number in range(len(stored.names))]

    def start() -> Iterator[dict[str, Any]]:
        # Made here, so that only the iteration holds it: its shared memory is freed with it.
        dataset = streaming.StreamingDataset(
            streams=[
                streaming.Stream(local=part, proportion=weight)
                for part, weight in zip(parts, stored.weights(job), strict=True)
            ],
            batch_size=job.loader.batch_size,
            shuffle=True,
            shuffle_seed=job.loader.seed,
            epoch_size=max(options["epoch_size"], sum(stored.pairs)),
        )
        return _epochs(
            DataLoader(
                dataset,
                batch_size=job.loader.batch_size,
                collate_fn=Collate(stored, job),
                drop_last=True,
                persistent_workers=workers > 0,
                **settings,
            )
        )

    return closing(Delivery(stored.names, start, threads=workers, workers=workers))


BASELINE = Baseline(
    name="mosaic",
    needs=("streaming", "torch"),
    install=INSTALL,
    shuffle="pairs shuffled when written; py1e, blocks of 256 Ki samples; new in every epoch",
    open=_open,
    convert=_convert,
    options=_OPTIONS,
    knobs=lambda cpus: worker_knobs("mosaic", cpus),
)
