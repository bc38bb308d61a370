"""Grain over the catalogs: `MapDataset` all the way, batches filled by threads of this process.

Frames and fields are read by the native reader into the batch, so nothing is copied. Threads up to
four CPUs, worker processes beyond: `grain_pipeline.counts_of` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from headrace.measure.baselines.baseline import Baseline
from headrace.measure.baselines.delivery import Delivery, checked_options
from headrace.measure.baselines.grain_pipeline import (
    OPTIONS,
    Item,
    ItemSource,
    batches,
    counts_of,
    knobs,
)
from headrace.measure.baselines.samples import Samples, job_threads
from headrace.measure.job import Job

__all__ = ["BASELINE"]


class _Reader:
    """Reads the samples of a batch; Grain sends it to its workers."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __call__(self, items: Sequence[Item]) -> dict[str, Any]:
        return self._samples.read(self._samples.draws([item[:3] for item in items]))


def _as_it_is(item: Item) -> Item:
    return item


@contextmanager
def _open(job: Job, converted: Path | None) -> Iterator[Delivery]:
    del converted
    options = checked_options(job, "grain", OPTIONS)
    counts = counts_of(options, job_threads(job))
    samples = Samples(job)
    sources = [ItemSource(number, items) for number, items in enumerate(samples.items)]

    def start() -> Iterator[dict[str, Any]]:
        return batches(
            sources,
            samples.weights,
            job.seed,
            job.batch_size,
            _as_it_is,
            _Reader(samples),
            **counts,
        )

    with closing(Delivery(samples.names, start, **counts)) as delivery:
        yield delivery


BASELINE = Baseline(
    name="grain",
    needs=("grain",),
    install="pip install 'headrace[baselines]'",
    shuffle="global within each source, sources interleaved in a fixed pattern",
    open=_open,
    options=OPTIONS,
    knobs=lambda cpus: knobs("grain", cpus),
)
