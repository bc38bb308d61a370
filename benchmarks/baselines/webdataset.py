"""WebDataset: tar shards of finished pairs, read in sequence.

As its documentation advises: samples are shuffled before they are written (all pairs of a source in
a random order), shards are drawn with replacement (`resampled=True`, which never ends and needs no
split between workers), `RandomMix` draws the source of each sample by weight, then a shuffle buffer
of encoded samples, and batches are made in the workers. Not done is what the documentation adds for
training on many nodes, another shuffle of decoded samples across workers: it would copy every batch
twice.

The order depends on the clock and on process numbers: the job's seed has no part in it.

Both frames of a pair are stored, so nearly every frame is on disk twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from benchmarks.baselines.stored import INSTALL, Collate, Converter, Stored, refuse_drawn_starts
from headrace.measure.baselines.baseline import Baseline, Conversion, Delivery, Knob
from headrace.measure.baselines.torch import (
    OPTIONS,
    identity,
    numpy_frames,
    worker_knobs,
    worker_settings,
)
from headrace.measure.job import Job

__all__ = ["BASELINE"]

_OPTIONS: dict[str, Any] = {
    **OPTIONS,  # those of torch's DataLoader, which WebLoader is
    "shuffle": 1000,  # samples in the buffer of each worker: what the documentation's examples have
}
#: Shards of 256 MB; its documentation speaks of 1 GB for data of terabytes. At least 8 a source, so
#: that drawing shards says something.
_SHARD_BYTES = 256e6
_FEWEST_SHARDS = 8

#: A smaller buffer mixes less.
_ORDER = (Knob("webdataset.shuffle", (100, 10_000), reorders=True),)


def _convert(job: Job, folder: Path) -> Conversion:
    import webdataset

    refuse_drawn_starts(job, "WebDataset")
    converter = Converter(job)
    stored = converter.stored
    for number, pairs in enumerate(stored.pairs):
        part = stored.part(folder, number)
        part.mkdir(parents=True)
        with webdataset.ShardWriter(
            str(part / "%06d.tar"),
            maxcount=-(-pairs // _FEWEST_SHARDS),
            maxsize=_SHARD_BYTES,
            verbose=0,
        ) as writer:
            for key, pair in enumerate(converter.shuffled(number)):
                frames = {f"{place}.frame": data for place, data in enumerate(pair.frames)}
                writer.write({"__key__": f"{key:09d}", **frames, "about": pair.about})
    return converter.finish(folder)


def _open(job: Job, converted: Path | None) -> AbstractContextManager[Delivery]:
    import webdataset

    refuse_drawn_starts(job, "WebDataset")
    stored = Stored.load(converted, job)
    assert converted is not None
    options = BASELINE.with_defaults(job.options)
    settings = worker_settings(job, options)
    workers = settings["num_workers"]
    parts = [
        webdataset.WebDataset(
            sorted(str(path) for path in stored.part(converted, number).glob("*.tar")),
            resampled=True,
            shardshuffle=False,
        )
        for number in range(len(stored.names))
    ]
    mixed = webdataset.DataPipeline(
        webdataset.RandomMix(parts, probs=stored.weights(job)),
        webdataset.shuffle(options["shuffle"]),
        webdataset.batched(job.loader.batch_size, collation_fn=Collate(stored, job)),
    )

    def start() -> Iterator[dict[str, Any]]:
        loader = webdataset.WebLoader(
            mixed,
            batch_size=None,
            collate_fn=identity,  # without one, arrays would be made tensors
            **settings,
        )
        return map(numpy_frames, loader)

    return closing(Delivery(stored.names, start, threads=workers, workers=workers))


BASELINE = Baseline(
    name="webdataset",
    needs=("webdataset", "torch"),
    install=INSTALL,
    shuffle="pairs shuffled when written; shards drawn with replacement, then a buffer of 1,000",
    open=_open,
    convert=_convert,
    options=_OPTIONS,
    knobs=lambda cpus: worker_knobs("webdataset", cpus) + _ORDER,
)
