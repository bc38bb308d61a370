"""Samples in a format of a baseline's own: what is written, and how a batch is made of it.

Frames keep the encoding they have in the dataset, so every backend decodes the same bytes with the
same decoder. What goes with a sample is one record: numbers of a fixed layout (`Stored.dtype`),
then the texts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.header import Encoded
from headrace.decoding.resize import use_one_thread_per_call
from headrace.errors import UsageError
from headrace.loader.plan import Sample
from headrace.loader.samples import MixtureSamples
from headrace.measure.baselines.baseline import Conversion
from headrace.measure.baselines.torch import fill_frames
from headrace.measure.job import Job
from headrace.reading.local import FileLeases, shared_files
from headrace.sampling.bijection import name_key
from headrace.sampling.items import SourceItems
from headrace.sampling.sampler import resolve_weights

__all__ = [
    "INSTALL",
    "Collate",
    "Converter",
    "EncodedPair",
    "PairDecoder",
    "Stored",
    "refuse_drawn_starts",
]

INSTALL = f"pip install -r {Path(__file__).with_name('requirements.txt')}"

_ABOUT = "converted.json"
#: Source keys that do not change what is stored.
_FREE_KEYS = ("weight", "val_split", "samples_per_episode")
_CHUNK = 1024  # samples planned at once; bounds the memory of a conversion


class EncodedPair(NamedTuple):
    """A sample as it is stored."""

    frames: Sequence[Encoded]
    about: bytes  #: numbers, then language and robot with a NUL between them


@dataclass(frozen=True)
class Stored:
    """What a converted folder holds; kept beside the data as JSON."""

    mixture: Mapping[str, Any]  #: that it was made of, without weights
    names: tuple[str, ...]
    channels: tuple[int | None, ...]  #: of each source's camera
    offsets: tuple[int, ...]  #: steps to a window's last frame, of each source
    pairs: tuple[int, ...]  #: of each source
    frames: int  #: of a window
    action: int  #: width of the widest action
    state: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numbers of a sample."""
        return np.dtype(
            [
                ("episode_id", "<i8"),
                ("dataset", "<i4"),
                ("frame_idx", "<i4"),
                ("offset", "<i4"),
                ("action", "<f4", (self.action,)),
                ("state", "<f4", (self.state,)),
            ]
        )

    def part(self, folder: Path, source: int) -> Path:
        """Where the data of a source are."""
        return folder / f"{source:03d}_{self.names[source]}"

    @staticmethod
    def load(folder: Path | None, job: Job) -> Stored:
        """What a folder holds, which must be the job's mixture."""
        if folder is None or not (folder / _ABOUT).exists():
            raise UsageError(
                f"there are no converted data in {folder}",
                remedy="Convert them first: this backend does not read RLDS",
            )
        values = json.loads((folder / _ABOUT).read_text("utf-8"))
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        stored = Stored(**{**values, **lists})
        if stored.mixture != _stored_mixture(job):
            raise UsageError(
                f"the converted data in {folder} are of another mixture",
                remedy="Convert this one into a folder of its own",
            )
        return stored

    def save(self, folder: Path) -> None:
        """Written last: a folder without it is not complete."""
        (folder / _ABOUT).write_text(json.dumps(self.__dict__), "utf-8")

    def weights(self, job: Job, lengths: Sequence[int] | None = None) -> list[float]:
        """Shares of the sources, as the native loader resolves them."""
        requested = [source.weight for source in job.mixture.active]
        return resolve_weights(requested, lengths or self.pairs, self.names)


def _stored_mixture(job: Job) -> dict[str, Any]:
    """The mixture as far as it matters for what is stored, as JSON has it."""
    values = job.mixture.to_dict()
    active = {source.name for source in job.mixture.active}
    values["sources"] = [
        {key: value for key, value in source.items() if key not in _FREE_KEYS}
        for source in values["sources"]
        if source["name"] in active
    ]
    return values


def refuse_drawn_starts(job: Job, backend: str) -> None:
    """`UsageError` where a pass takes N random starts of an episode.

    A format of finished samples cannot draw other starts in each pass.
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
    """Reads samples encoded, one after the other, from the catalogs.

    One at a time, so that a conversion takes little memory however large the data are; by one
    process, as the frames are only copied.
    """

    def __init__(self, job: Job) -> None:
        self._begun = perf_counter()
        # Everything is stored; what a job leaves out it does not read.
        self.samples = samples = MixtureSamples(job.mixture, replace(job.loader, metadata="full"))
        files = shared_files()
        self._leases = FileLeases(files, files.max_open // 2)
        self.stored = Stored(
            mixture=_stored_mixture(job),
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
        """All steps of a source in order: episode, frame, and what goes with the pair that starts
        there.

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
        return self.samples.plan(draws).samples()

    def _frames(self, sample: Sample) -> list[bytes]:
        source = self.samples.sources[sample.source]
        return [
            source.catalog.encoded(sample.episode, sample.start + offset, source.camera.key)
            for offset in source.offsets
        ]

    def _about(self, sample: Sample) -> bytes:
        """As the native loader fills the fields of a row."""
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


class PairDecoder:
    """Makes batches of stored samples. It can be sent to other processes and used by threads."""

    def __init__(self, stored: Stored, job: Job) -> None:
        self._stored = stored
        self._dtype = stored.dtype
        self._options = job.loader
        self._own = threading.local()
        # Before workers are forked: in a child OpenCV would wait for pool threads that the fork
        # left behind.
        use_one_thread_per_call()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()
        use_one_thread_per_call()

    def shape(self, count: int) -> tuple[int, ...]:
        """Of the frames of so many samples."""
        return (count, self._stored.frames, *self._options.size, 3)

    def decode(
        self, pairs: Sequence[EncodedPair], frames: NDArray[np.uint8] | None = None
    ) -> dict[str, Any]:
        """The fields of a `Batch`, except `names` and `draws`."""
        if frames is None:
            frames = np.empty(self.shape(len(pairs)), np.uint8)
        width = self._dtype.itemsize
        numbers = np.frombuffer(b"".join(pair.about[:width] for pair in pairs), self._dtype)
        decoder = self._decoder()
        for row, (pair, source) in enumerate(zip(pairs, numbers["dataset"].tolist(), strict=True)):
            channels = self._stored.channels[source]
            for place, data in enumerate(pair.frames):
                decoder.decode(data, frames[row, place], channels=channels)
        if self._options.metadata == "none":
            return {"frames": frames}
        if self._options.metadata == "dataset":
            return {"frames": frames, "dataset": numbers["dataset"].copy()}
        texts = [pair.about[width:].decode("utf-8", "surrogatepass") for pair in pairs]
        language, robot = zip(*(text.rsplit("\0", 1) for text in texts), strict=True)
        fields = {name: np.ascontiguousarray(numbers[name]) for name in self._dtype.names or ()}
        return {"frames": frames, **fields, "language": list(language), "robot": list(robot)}

    def _decoder(self) -> FrameDecoder:
        decoder: FrameDecoder | None = getattr(self._own, "decoder", None)
        if decoder is None:
            decoder = self._own.decoder = FrameDecoder(filter=self._options.resize)
        return decoder


class Collate:
    """Decodes the samples of a batch into shared memory, in torch's worker processes."""

    def __init__(self, stored: Stored, job: Job) -> None:
        self._decoder = PairDecoder(stored, job)
        self._places = [f"{place}.frame" for place in range(stored.frames)]

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        pairs = [
            EncodedPair([sample[place] for place in self._places], sample["about"])
            for sample in samples
        ]
        shape = self._decoder.shape(len(pairs))
        return fill_frames(shape, lambda frames: self._decoder.decode(pairs, frames))
