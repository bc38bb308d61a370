"""Reading samples, encoded, to write them in a rival's own format.

One after the other, so that a conversion takes little memory however large the data are; by one
process, as the frames are only copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UsageError
from headrace.loader.plan import Sample, read_lines
from headrace.measure.baselines.baseline import Conversion
from headrace.measure.baselines.samples import Samples
from headrace.measure.baselines.stored import EncodedPair, Stored, what_is_stored
from headrace.measure.job import Job
from headrace.reading.local import FileLeases, shared_files
from headrace.sampling.bijection import name_key
from headrace.sampling.items import SourceItems

__all__ = ["Converter", "refuse_drawn_starts"]

_CHUNK = 1024  # samples planned at once; bounds the memory of a conversion


def refuse_drawn_starts(job: Job, backend: str) -> None:
    """`UsageError` where a pass takes N random starts an episode.

    A format of finished samples cannot draw starts anew in each pass.
    """
    for source in job.mixture.active:
        if source.samples_per_episode:
            raise UsageError(
                f"samples_per_episode is {source.samples_per_episode}, and {backend} stores "
                "finished samples: it cannot draw other starts in each pass",
                dataset=source.name,
                remedy="Compare it with all pairs (samples_per_episode: 0)",
            )


class Converter:
    """Reads samples encoded, one after the other, from the catalogs."""

    def __init__(self, job: Job) -> None:
        self._begun = perf_counter()
        # Everything is stored; what a job leaves out it does not read.
        self.samples = samples = Samples(replace(job, metadata="full"))
        files = shared_files()
        self._leases = FileLeases(files, files.max_open // 2)
        self.stored = Stored(
            mixture=what_is_stored(job),
            names=samples.names,
            channels=tuple(source.camera.shape[-1] for source in samples.sources),
            offsets=tuple(source.k for source in samples.sources),
            pairs=tuple(int(items.counts.sum()) for items in samples.items),
            frames=len(samples.sources[0].offsets),
            action=samples.specs["action"].shape[1],
            state=samples.specs["state"].shape[1],
        )

    def shuffled(self, source: int) -> Iterator[EncodedPair]:
        """All pairs of a source, each once, in a random order."""
        pairs = SourceItems(self.samples.items[source].counts)
        key = name_key(self.samples.names[source])
        for first in range(0, pairs.length, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, pairs.length))
            episodes, starts = pairs.locate(numbers, key)
            for sample in self._planned(source, episodes, starts):
                yield EncodedPair(self._frames(sample), self._about(sample))

    def steps(self, source: int) -> Iterator[tuple[int, bytes, bytes]]:
        """All steps of a source in order: episode, frame, and what goes with the pair from it on.

        The latter is empty where no pair starts: near the end of an episode.
        """
        opened, items = self.samples.sources[source], self.samples.items[source]
        for number, episode in enumerate(self.samples.episodes[source].tolist()):
            starts = np.arange(items.counts[number])
            pairs = self._planned(source, np.full(len(starts), number), starts)
            for t in range(int(opened.catalog.steps[episode])):
                frame = opened.catalog.encoded(episode, t, opened.camera.key)
                yield number, frame, self._about(pairs[t]) if t < len(starts) else b""

    def finish(self, folder: Path) -> Conversion:
        """The folder is complete."""
        self.stored.save(folder)
        self._leases.close()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Conversion(perf_counter() - self._begun, size)

    def _planned(
        self, source: int, episodes: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> list[Sample]:
        columns = [np.full(len(starts), source), episodes, starts]
        draws = self.samples.draws(np.stack(columns, axis=1))
        return read_lines(self.samples.lines(draws))

    def _frames(self, sample: Sample) -> list[bytes]:
        source = self.samples.sources[sample.source]
        return [
            source.catalog.encoded(sample.episode, sample.start + offset, source.camera.key)
            for offset in source.offsets
        ]

    def _about(self, sample: Sample) -> bytes:
        """As `SampleReader` fills the fields of a row."""
        source = self.samples.sources[sample.source]
        fd = self._leases[source.catalog.shard_file(sample.shard)]
        t = sample.start
        row = np.zeros((), self.stored.dtype)
        row["episode_id"] = sample.shard << 32 | sample.record
        row["dataset"], row["frame_idx"], row["offset"] = sample.source, t, source.k
        if source.action:
            values = source.action.read(fd, sample.action, source.k, sample.episode, t)
            row["action"][: source.action.dim] = np.add.reduce(values, axis=0)
        if source.state:
            values = source.state.read(fd, sample.state, 1, sample.episode, t)
            row["state"][: source.state.dim] = values[0]
        language = ""
        if source.language:
            language = source.language.read(
                fd, sample.text, sample.text_size, sample.episode, sample.steps, t
            )
        robot = source.robot[sample.episode] if source.robot else ""
        return row.tobytes() + f"{language}\0{robot}".encode("utf-8", "surrogatepass")
