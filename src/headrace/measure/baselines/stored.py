"""Samples in a rival's own format: what is written, and how a batch is made of it.

Frames keep the encoding they have in the dataset, so every backend decodes the same bytes with the
same decoder. What goes with a sample is one record: numbers of a fixed layout (`Stored.dtype`),
then the texts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.header import Encoded
from headrace.decoding.resize import use_one_thread_per_call
from headrace.errors import UsageError
from headrace.measure.baselines.samples import settings_of
from headrace.measure.job import Job
from headrace.sampling.sampler import resolve_weights

__all__ = ["EncodedPair", "PairDecoder", "Stored", "what_is_stored"]

_ABOUT = "converted.json"
#: Source keys that do not change what is stored.
_FREE_KEYS = ("weight", "val_split", "samples_per_episode")


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
        """Where a source's data lie."""
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
        if stored.mixture != what_is_stored(job):
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
        asked = [source.weight for source in job.mixture.active]
        return resolve_weights(asked, lengths or self.pairs, self.names)


def what_is_stored(job: Job) -> dict[str, Any]:
    """The mixture as far as it matters for what is stored, as JSON has it."""
    values = job.mixture.to_dict()
    active = {source.name for source in job.mixture.active}
    values["sources"] = [
        {key: value for key, value in source.items() if key not in _FREE_KEYS}
        for source in values["sources"]
        if source["name"] in active
    ]
    return values


class PairDecoder:
    """Makes batches of stored samples. It can be sent to other processes and used by threads."""

    def __init__(self, stored: Stored, job: Job) -> None:
        self._stored = stored
        self._dtype = stored.dtype
        settings = settings_of(job)
        self._size = (settings.height, settings.width)
        self._filter = settings.resize
        self._metadata = job.metadata
        self._own = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()

    def shape(self, count: int) -> tuple[int, ...]:
        """Of the frames of so many samples."""
        return (count, self._stored.frames, *self._size, 3)

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
        if self._metadata == "none":
            return {"frames": frames}
        if self._metadata == "dataset":
            return {"frames": frames, "dataset": numbers["dataset"].copy()}
        texts = [pair.about[width:].decode("utf-8", "surrogatepass") for pair in pairs]
        language, robot = zip(*(text.rsplit("\0", 1) for text in texts), strict=True)
        fields = {name: np.ascontiguousarray(numbers[name]) for name in self._dtype.names or ()}
        return {"frames": frames, **fields, "language": list(language), "robot": list(robot)}

    def _decoder(self) -> FrameDecoder:
        decoder: FrameDecoder | None = getattr(self._own, "decoder", None)
        if decoder is None:
            use_one_thread_per_call()
            decoder = self._own.decoder = FrameDecoder(filter=self._filter)
        return decoder
