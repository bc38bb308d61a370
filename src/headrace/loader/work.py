"""What one thread does with a task: read, decode into the slot, and what goes with the frames."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

import numpy as np

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.image import PixelType
from headrace.engine.budget import Budget
from headrace.engine.slots import Arrays
from headrace.engine.statistics import Counters
from headrace.errors import DataError, HeadraceError
from headrace.loader.opened import OpenedSource
from headrace.loader.plan import Draft, Sample, Task
from headrace.loader.settings import Settings, camera_size
from headrace.reading.local import FileLeases, LocalFiles

__all__ = ["Errors", "SampleWorker", "Skipped"]

_KEPT_ERRORS = 100
_WHAT = "reading and decoding on one thread"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be had and was replaced."""

    draw: int
    error: str


@dataclass
class Errors:
    """What was skipped so far, and how much may be."""

    limit: int  #: samples that may be skipped before the run stops; 0: none
    count: int = 0
    first: list[Skipped] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def skip(self, draw: int, error: HeadraceError) -> None:
        """Count one more, or raise it."""
        with self._lock:
            self.count += 1
            if len(self.first) < _KEPT_ERRORS:
                self.first.append(Skipped(draw, str(error)))
            if self.count > self.limit:
                raise error


class SampleWorker:
    """Performs tasks on one thread, with memory of its own."""

    def __init__(
        self,
        sources: Sequence[OpenedSource],
        files: LocalFiles,
        budget: Budget,
        counters: Counters,
        *,
        settings: Settings,
        errors: Errors,
    ) -> None:
        self._sources = sources
        self._files = files
        self._leases = FileLeases(files, files.max_open // (2 * settings.threads))
        self._budget = budget
        self._counters = counters
        self._level = {"none": 0, "dataset": 1, "full": 2}[settings.metadata]
        self._chunk = settings.action_chunk
        self._errors = errors
        self._decoder = FrameDecoder(filter=settings.resize)
        self._buffer = bytearray(0)
        self._view = memoryview(self._buffer)
        # Decoding's memory is charged in advance, as much as the declared cameras can take.
        target = (settings.height, settings.width)
        self._scratch = max(self._decoder.scratch_limit(camera_size(s), target) for s in sources)
        budget.charge(self._scratch, _WHAT)

    def __call__(self, task: Task, arrays: Arrays) -> None:
        """Fill the rows of a task's samples."""
        for sample in task.samples:
            attempt = 0
            while True:
                try:
                    self._sample(sample, task.draft, arrays)
                    break
                except DataError as error:
                    self._locate(error, sample)
                    self._errors.skip(sample.draw, error)  # raises unless it may be skipped
                    attempt += 1
                    sample = task.draft.planner.replacement(sample, attempt)

    def _sample(self, sample: Sample, draft: Draft, arrays: Arrays) -> None:
        source = self._sources[sample.source]
        camera = source.camera
        key = source.catalog.shard_file(sample.shard)
        fd = self._leases[key]
        path = key[0]
        frames = arrays["frames"]
        counters = self._counters
        seconds = counters.seconds
        read_s = decode_s = 0.0
        for place, (offset, length) in enumerate(zip(sample.offsets, sample.lengths, strict=True)):
            if length < 0:
                raise self._absent(sample, place)
            if length > len(self._buffer):
                self._grow(length)
            data = self._view[:length]
            started = perf_counter()
            self._files.read_into(fd, path, offset, data)
            middle = perf_counter()
            try:
                self._decoder.decode(
                    data,
                    frames[sample.row, place],
                    channels=camera.shape[-1] if camera.shape else None,
                    dtype=cast(PixelType, camera.dtype),
                )
            except HeadraceError as error:
                step = sample.start + source.offsets[place]
                raise error.within(offset=offset, frame=step) from None
            ended = perf_counter()
            read_s += middle - started
            decode_s += ended - middle
            counters.images += 1
            counters.bytes += length
        seconds["read"] = seconds.get("read", 0.0) + read_s
        seconds["decode"] = seconds.get("decode", 0.0) + decode_s
        if self._level:
            started = perf_counter()
            arrays["dataset"][sample.row] = sample.source
            if self._level == 2:
                self._fields(source, sample, draft, arrays, fd)
            counters.add("fields", perf_counter() - started)
        if self._decoder.scratch_bytes > self._scratch:  # a larger image than was declared
            self._budget.charge(self._decoder.scratch_bytes - self._scratch, _WHAT)
            self._scratch = self._decoder.scratch_bytes

    def _fields(
        self, source: OpenedSource, sample: Sample, draft: Draft, arrays: Arrays, fd: int
    ) -> None:
        """Everything that goes with the frames."""
        row, t = sample.row, sample.start
        arrays["episode_id"][row] = sample.shard << 32 | sample.record
        arrays["frame_idx"][row] = t
        arrays["offset"][row] = source.k
        action = arrays["action"][row]
        if source.action is None:
            action[...] = 0
            if self._chunk:
                arrays["action_is_pad"][row] = True
        elif self._chunk:
            count = min(self._chunk, sample.steps - t)
            values = source.action.read(fd, sample.action, count, sample.episode, t)
            action[...] = 0
            action[:count, : source.action.dim] = values
            arrays["action_is_pad"][row] = np.arange(self._chunk) >= count
        else:
            values = source.action.read(fd, sample.action, source.k, sample.episode, t)
            np.add.reduce(values, axis=0, out=action[: source.action.dim])
            action[source.action.dim :] = 0
        state = arrays["state"][row]
        if source.state is None:
            state[...] = 0
        else:
            dim = source.state.dim
            state[:dim] = source.state.read(fd, sample.state, 1, sample.episode, t)[0]
            state[dim:] = 0
        draft.language[row] = (
            source.language.read(fd, sample.text, sample.text_size, sample.episode, sample.steps, t)
            if source.language
            else ""
        )
        if source.robot:
            draft.robot[row] = source.robot[sample.episode]

    def _grow(self, length: int) -> None:
        """A larger buffer for encoded frames; it only ever grows."""
        size = max(length + length // 4, 64 << 10)
        self._budget.charge(size - len(self._buffer), _WHAT)
        self._view.release()
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)

    def _locate(self, error: HeadraceError, sample: Sample) -> None:
        source = self._sources[sample.source]
        error.within(
            dataset=source.name,
            file=source.catalog.shard_file(sample.shard)[0],
            episode=source.catalog.info(sample.episode).id,
            frame=sample.start,
            field=source.camera.key,
        )

    def _absent(self, sample: Sample, place: int) -> DataError:
        source = self._sources[sample.source]
        return DataError(
            f"this episode has no frame of {source.camera.name!r}",
            frame=sample.start + source.offsets[place],
            remedy="Choose another camera, or leave such samples out (on_error='skip')",
        )
