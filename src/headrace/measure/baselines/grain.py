"""Grain over the catalogs: `MapDataset` all the way, batches filled by threads of this process.

Each source is a random-access dataset of its own: shuffled as a whole in every pass, repeated, then
mixed by weight, batched, and prefetched by threads of this process or by worker processes. A batch
is put together by one function, so that frames are decoded straight into it: here by the reader of
the native loader, which also resolves the samples. The pipeline does not depend on where samples
are stored: the ArrayRecord baseline of `benchmarks/` uses it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.loader.samples import MixtureSamples
from headrace.measure.baselines.baseline import Baseline, Delivery, Knob, job_workers
from headrace.measure.job import Job
from headrace.sampling.items import SourceItems

OPTIONS: dict[str, Any] = {
    # Threads that fill batches, in each process; None: as many as CPUs without processes, else 1
    # (the documentation advises against many where reading is not what takes the time).
    "threads": None,
    # Worker processes (`mp_prefetch`); 0: threads only; None: see `resolve_counts`.
    "workers": None,
    # Batches on their way for each thread. Grain's own default, 500 elements, is meant for records
    # of a few KiB and would be 12 GB of batches; 2 is what torch's DataLoader has.
    "prefetch": 2,
}
SHUFFLE = "global within each source, sources interleaved in a fixed pattern"

_MOST_THREADS = 4  # without processes; see `resolve_counts`


def resolve_counts(options: dict[str, Any], cpus: int) -> dict[str, int]:
    """Threads, workers and prefetch of a pipeline, with the defaults filled in.

    Processes are what the documentation advises where the interpreter lock is the limit; every
    batch is then copied to shared memory. On two CPUs threads gave 540 samples for a second of CPU
    time, processes 425, and half the memory. The lock is the limit from about four CPUs on:
    measured with the native loader (`docs/decisions/0009-processes.md`), not with Grain.
    """
    threads, workers = options["threads"], options["workers"]
    if workers is None:
        workers = 0 if cpus <= _MOST_THREADS else cpus
    if threads is None:
        threads = 1 if workers else cpus
    return {"threads": threads, "workers": workers, "prefetch": options["prefetch"]}


def grain_knobs(backend: str, cpus: int) -> tuple[Knob, ...]:
    """What a search tries beside the defaults of `resolve_counts`."""
    half = max(1, cpus // 2)
    if cpus <= _MOST_THREADS:  # threads only
        workers: tuple[int, ...] = (cpus, half)
        threads = (2 * cpus, half)
    else:
        workers, threads = (half, 2 * cpus, 0), (2, 4)
    return (
        Knob(f"{backend}.workers", tuple(dict.fromkeys(workers))),
        Knob(f"{backend}.threads", tuple(n for n in dict.fromkeys(threads) if n != cpus)),
        Knob(f"{backend}.prefetch", (1, 4, 8)),
    )


class Item(NamedTuple):
    """A sample, or a place in an episode for which a start is still to be drawn."""

    source: int
    episode: int  #: among the episodes of the source's split
    start: int  #: -1: to be drawn
    starts: int  #: valid starts of the episode


class ItemSource:
    """What a source has in one pass, as Grain's random access to data."""

    def __init__(self, source: int, items: SourceItems) -> None:
        self._source = source
        self._counts = items.counts
        self._ends = np.cumsum(items.items)
        self.per_episode = items.samples_per_episode
        self._length = items.length

    def __repr__(self) -> str:
        return f"ItemSource({self._source}, {self._length} items)"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Item:
        episode = int(np.searchsorted(self._ends, number, side="right"))
        starts = int(self._counts[episode])
        if self.per_episode:
            return Item(self._source, episode, -1, starts)
        before = int(self._ends[episode - 1]) if episode else 0
        return Item(self._source, episode, number - before, starts)


def _draw_start(item: Item, rng: np.random.Generator) -> Item:
    return item._replace(start=int(rng.integers(item.starts)))


def batches(
    sources: Sequence[ItemSource],
    weights: Sequence[float],
    job: Job,
    fetch: Callable[[Item], Any] | None,
    put_together: Callable[[Sequence[Any]], dict[str, Any]],
    *,
    threads: int,
    workers: int,
    prefetch: int,
) -> Iterator[dict[str, Any]]:
    """Endless batches. `fetch` reads a sample, `put_together` decodes the samples of a batch."""
    import grain

    from headrace.outputs.grain import to_batches

    parts = []
    for number, source in enumerate(sources):
        part: Any = (
            grain.MapDataset.source(source).seed(job.loader.seed + number).shuffle().repeat()
        )
        # After `repeat`, so that every pass draws other starts.
        parts.append(part.random_map(_draw_start) if source.per_episode else part)
    mixed: Any = grain.MapDataset.mix(parts, weights)
    if fetch is not None:
        mixed = mixed.map(fetch)
    found: Iterator[dict[str, Any]] = iter(
        to_batches(
            mixed.batch(job.loader.batch_size, batch_fn=put_together),
            threads=threads,
            prefetch=prefetch * threads,
            workers=workers,
            worker_prefetch=prefetch,
        )
    )
    return found


class _Reader:
    """Reads the samples of a batch; Grain sends it to its workers."""

    def __init__(self, samples: MixtureSamples) -> None:
        self._samples = samples

    def __call__(self, items: Sequence[Item]) -> dict[str, Any]:
        return self._samples.read(self._samples.draws([item[:3] for item in items]))


def _open(job: Job, _: Path | None) -> AbstractContextManager[Delivery]:
    counts = resolve_counts(BASELINE.with_defaults(job.options), job_workers(job))
    samples = MixtureSamples(job.mixture, job.loader)
    sources = [ItemSource(number, items) for number, items in enumerate(samples.items)]

    def start() -> Iterator[dict[str, Any]]:
        return batches(sources, samples.weights, job, None, _Reader(samples), **counts)

    return closing(Delivery(samples.names, start, **counts))


BASELINE = Baseline(
    name="grain",
    needs=("grain",),
    install="pip install 'headrace[jax]'",
    shuffle=SHUFFLE,
    open=_open,
    options=OPTIONS,
    knobs=lambda cpus: grain_knobs("grain", cpus),
)
