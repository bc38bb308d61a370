"""The work of a mixture's loader: read, decode into the slot, and what goes with the frames."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.decoding.frame import FrameDecoder, PixelType
from headrace.decoding.jpeg import is_plain_jpeg
from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.slots import Arrays
from headrace.engine.statistics import Counters
from headrace.engine.workers import Charges, Done, Fill
from headrace.errors import DataError, HeadraceError, WorkerError
from headrace.formats.extract import check_blob
from headrace.loader.mixture import OpenedSource
from headrace.loader.options import LoaderOptions
from headrace.loader.plan import Sample, SamplePlan, SampleTask
from headrace.loader.sizes import camera_size
from headrace.reading.local import FileLeases, LocalFiles, shared_files
from headrace.sampling.bijection import Ints

_log = logging.getLogger("headrace")

#: Replacements of one draw before its source counts as unreadable: where half of a source is
#: damaged, not one of 10^30 draws needs so many.
_ATTEMPTS = 100
_PLACE = ("dataset", "file", "offset", "episode", "frame", "field")
_WHAT = "reading and decoding on one thread"


@dataclass
class SampleWork:
    """Reads and decodes samples, for the engine's workers; each has a `SampleFiller`."""

    sources: Sequence[OpenedSource]
    options: LoaderOptions
    files: LocalFiles
    threads: int  #: that share the files

    def __getstate__(self) -> tuple[Sequence[OpenedSource], LoaderOptions]:
        return self.sources, self.options

    def __setstate__(self, state: tuple[Sequence[OpenedSource], LoaderOptions]) -> None:
        self.sources, self.options = state
        self.files, self.threads = shared_files(), 1

    def enter_process(self) -> None:
        """OpenCV starts no threads of its own."""
        use_one_thread_per_call()

    def open(self, budget: Charges) -> SampleFiller:
        """What one thread reads and decodes with."""
        open_files = self.files.max_open // (2 * self.threads)
        return SampleFiller(self.sources, self.files, budget, self.options, open_files)

    def error_at(self, plan: Ints, at: int, problem: str, remedy: str | None = None) -> WorkerError:
        """An error of a worker, with the sample that it was reading; the remedy is for a crash."""
        (sample,) = SamplePlan(plan[at : at + 1]).samples()
        source = self.sources[sample.source]
        if remedy is None:
            remedy = "A damaged frame may have crashed a decoder: `headrace verify` decodes them"
        return WorkerError(
            problem,
            dataset=source.name,
            file=source.catalog.shard_file(sample.shard)[0],
            offset=sample.offsets[0],
            episode=source.catalog.info(sample.episode).id,
            frame=sample.start,
            remedy=remedy,
        )


class SampleTasks:
    """Performs tasks by the rule for damaged samples."""

    def __init__(self, skipped: SkippedSamples, keep_encoded: bool) -> None:
        self.skipped = skipped
        self.keep_encoded = keep_encoded  #: whether JPEGs stay as they are from now on

    def perform(self, task: SampleTask, fill: Fill) -> None:
        """Fill the rows of a task's samples, replacing those that cannot be read."""
        plan, batch = task.plan, task.batch
        attempts: Counter[int] = Counter()
        while True:
            done, error, texts = fill(plan.matrix, self.keep_encoded)
            if texts is not None:
                language, robot = texts
                for row, text in language.items():
                    batch.language[row] = text
                for row, text in robot.items():
                    batch.robot[row] = text
            if error is None:
                return
            (failed,) = plan[done : done + 1].samples()
            attempts[failed.row] += 1
            self.skipped.add(failed.draw, error, attempts[failed.row])  # raises, or it is replaced
            plan = plan.replaced(done, batch.planner.replacement(failed, attempts[failed.row]))


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """A frame, or a field at its step, that could not be read; its samples were replaced."""

    dataset: str | None
    file: str | None
    offset: int | None  #: in the file
    episode: str | None  #: "split/shard/record"
    frame: int | None  #: step of the episode
    field: str | None
    problem: str
    draw: int  #: the first that met it


class SkippedSamples:
    """Samples that were replaced, and the damaged frames that were the reason.

    The limit is on distinct frames: a frame is drawn again in every pass, and a few damaged ones
    must not end a long run.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit  #: damaged frames before the run ends; None: the first is raised
        self.count = 0  #: samples that were replaced
        self._damaged: dict[tuple[Any, ...], DamagedFrame] = {}
        self._lock = threading.Lock()

    @property
    def damaged(self) -> tuple[DamagedFrame, ...]:
        """The damaged frames, in the order in which they were met."""
        with self._lock:
            return tuple(self._damaged.values())

    def add(self, draw: int, error: Exception, attempt: int) -> None:
        """Note a sample that is to be replaced for the `attempt`-th time, or raise its error."""
        if self.limit is None or not isinstance(error, DataError):
            raise error
        place = error.file, error.episode, error.frame, error.field
        with self._lock:
            self.count += 1
            new = place not in self._damaged
            if new:
                values = {name: getattr(error, name) for name in _PLACE}
                self._damaged[place] = DamagedFrame(**values, problem=error.problem, draw=draw)
            number = len(self._damaged)
        if number > self.limit:
            found = f"{number:,} damaged frames were met, and max_errors is {self.limit:,}"
            raise _too_damaged(error, f"{found}; the last one: {error.problem}")
        if attempt > _ATTEMPTS:
            found = f"draw {draw:,} and {_ATTEMPTS} samples in its place cannot be read"
            raise _too_damaged(error, f"{found}; the last one: {error.problem}")
        if new:
            _log.warning(
                "samples with a damaged frame are replaced (frame %s of at most %s): %s",
                number,
                self.limit,
                error,
            )


def _too_damaged(error: DataError, problem: str) -> HeadraceError:
    """The error of a run that has met more damage than on_error="skip" may pass over."""
    remedy = (
        "on_error='skip' replaces samples up to that limit: raise max_errors, or leave the "
        "damaged episodes out with `headrace verify --quarantine` (`--from RUN`: those that a "
        "recorded run has met; in Python they are `statistics().damaged`)"
    )
    return HeadraceError.from_dict({**error.to_dict(), "problem": problem, "remedy": remedy})


class SampleFiller:
    """Fills samples on one thread, with memory of its own."""

    def __init__(
        self,
        sources: Sequence[OpenedSource],
        files: LocalFiles,
        budget: Charges,
        options: LoaderOptions,
        open_files: int,
    ) -> None:
        self._sources = sources
        self._k = np.array([source.k for source in sources])
        self._files = files
        self._leases = FileLeases(files, open_files)
        self._budget = budget
        self._counters = Counters()
        self._level = {"none": 0, "dataset": 1, "full": 2}[options.metadata]
        self._chunk = options.action_chunk or 0
        self._sum = options.action == "sum"
        self._decoder = FrameDecoder(filter=options.resize)
        self._buffer = bytearray(0)
        self._view = memoryview(self._buffer)
        # Decoding's memory is charged in advance, as much as the declared cameras can take.
        limits = (self._decoder.scratch_limit(camera_size(s), options.size) for s in sources)
        self._scratch = max(limits)
        budget.charge(self._scratch, _WHAT)

    def fill(self, plan: Ints, arrays: Arrays, counters: Counters, how: bool = False) -> Done:
        """Fill the samples' rows up to the first that cannot be read; extras are the texts.

        With `how` true, frames that a device can decode stay JPEGs in the place of their pixels.

        First all frames, then all fields: between two decodes their code and data would have left
        the CPU's caches each time, and a sample's fields take 46 us instead of 12.
        """
        self._counters = counters
        planned = SamplePlan(plan)
        samples = planned.samples()
        frames, encoded = arrays["frames"], arrays.get("encoded")
        if encoded is not None:
            encoded[planned.row] = 0
        kept = encoded if how else None
        done, error = self._each(samples, lambda s: self._frames(s, frames[s.row], kept))
        if not self._level:
            return Done(done, error)
        started = perf_counter()
        self._numbers(planned[:done], arrays)
        texts: tuple[dict[int, str], dict[int, str]] | None = None
        if self._level == 2:
            language: dict[int, str] = {}
            robot: dict[int, str] = {}
            texts = language, robot
            fields = self._each(samples[:done], lambda s: self._fields(s, arrays, language, robot))
            if fields[1] is not None:
                done, error = fields
        ended = perf_counter()
        counters.add("fields", ended - started)
        if counters.spans is not None:
            counters.spans.append(("fields", started, ended))
        return Done(done, error, texts)

    def _each(
        self, samples: Sequence[Sample], do: Callable[[Sample], None]
    ) -> tuple[int, DataError | None]:
        """Do something with every sample up to the first error."""
        for number, sample in enumerate(samples):
            self._counters.at[0] = number
            try:
                do(sample)
            except DataError as error:
                # It says where the damage is. Its frames would hold the slot, and `fill` holds it.
                return number, self._located(error.with_traceback(None), sample)
        return len(samples), None

    def close(self) -> None:
        """Give back memory and open files."""
        self._leases.close()
        self._budget.release(self._scratch + len(self._buffer))
        self._scratch = 0
        self._view.release()
        self._buffer = bytearray(0)
        self._view = memoryview(self._buffer)

    def _frames(
        self, sample: Sample, frames: NDArray[np.uint8], kept: NDArray[np.int32] | None
    ) -> None:
        """Read and decode a sample's frames; JPEGs may be `kept`, and their lengths noted there."""
        source = self._sources[sample.source]
        camera = source.camera
        key = source.catalog.shard_file(sample.shard)
        fd, path = self._leases[key], key[0]
        channels = camera.shape[-1] if camera.shape else None
        dtype = cast(PixelType, camera.dtype)
        spans = self._counters.spans
        read_s = decode_s = 0.0
        resized_before = resized = self._decoder.resize_s
        each = zip(sample.offsets, sample.lengths, sample.crcs, strict=True)
        for place, (offset, length, crc) in enumerate(each):
            if length < 0:
                raise self._absent(sample, place)
            if length > len(self._buffer):
                self._grow(length)
            data = self._view[:length]
            started = perf_counter()
            self._files.read_into(fd, path, offset, data)
            try:
                if crc >= 0:
                    check_blob(data, crc)
                middle = perf_counter()
                if spans is not None:
                    spans.append(("read", started, middle))
                if kept is not None and channels != 1 and _keep(data, frames[place]):
                    kept[sample.row, place] = length
                    read_s += middle - started
                    continue
                self._decoder.decode(data, frames[place], channels=channels, dtype=dtype)
            except HeadraceError as error:
                step = sample.start + source.offsets[place]
                raise error.within(offset=offset, frame=step) from None
            ended = perf_counter()
            if spans is not None:  # the resize comes last
                resized, before = self._decoder.resize_s, resized
                decoded = ended - (resized - before)
                spans += [("decode", middle, decoded), ("resize", decoded, ended)]
            read_s += middle - started
            decode_s += ended - middle
        self._counters.add("read", read_s)
        resize_s = self._decoder.resize_s - resized_before
        self._counters.add("decode", decode_s - resize_s)
        self._counters.add("resize", resize_s)
        self._counters.images += len(sample.lengths)
        self._counters.bytes += sum(sample.lengths)
        if self._decoder.scratch_bytes > self._scratch:  # a larger image than was declared
            self._budget.charge(self._decoder.scratch_bytes - self._scratch, _WHAT)
            self._scratch = self._decoder.scratch_bytes

    def _numbers(self, plan: SamplePlan, arrays: Arrays) -> None:
        """Which samples they are, of all at once."""
        rows, source = plan.row, plan.source
        arrays["dataset"][rows] = source
        if self._level == 2:
            arrays["episode_id"][rows] = plan.shard << 32 | plan.record
            arrays["frame_idx"][rows] = plan.start
            arrays["offset"][rows] = self._k[source]

    def _fields(
        self,
        sample: Sample,
        arrays: Arrays,
        language: dict[int, str],
        robot: dict[int, str],
    ) -> None:
        """Action, state and texts of a sample."""
        source = self._sources[sample.source]
        row, t = sample.row, sample.start
        fd = self._leases[source.catalog.shard_file(sample.shard)]
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
            count = source.k if self._sum else 1
            values = source.action.read(fd, sample.action, count, sample.episode, t)
            np.add.reduce(values, axis=0, out=action[: source.action.dim])
            action[source.action.dim :] = 0
        state = arrays["state"][row]
        if source.state is None:
            state[...] = 0
        else:
            dim = source.state.dim
            state[:dim] = source.state.read(fd, sample.state, 1, sample.episode, t)[0]
            state[dim:] = 0
        language[row] = (
            source.language.read(fd, sample.text, sample.text_size, sample.episode, sample.steps, t)
            if source.language
            else ""
        )
        if source.robot:
            robot[row] = source.robot[sample.episode]

    def _grow(self, length: int) -> None:
        """A larger buffer for encoded frames; it only ever grows."""
        size = max(length + length // 4, 64 << 10)
        self._budget.charge(size - len(self._buffer), _WHAT)
        self._view.release()
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)

    def _located(self, error: DataError, sample: Sample) -> DataError:
        source = self._sources[sample.source]
        error.within(
            dataset=source.name,
            file=source.catalog.shard_file(sample.shard)[0],
            episode=source.catalog.info(sample.episode).id,
            frame=sample.start,
            field=source.camera.key,
        )
        return error

    def _absent(self, sample: Sample, place: int) -> DataError:
        source = self._sources[sample.source]
        return DataError(
            f"this episode has no frame of {source.camera.name!r}",
            frame=sample.start + source.offsets[place],
            remedy="Choose another camera, or leave such samples out (on_error='skip')",
        )


def _keep(data: memoryview, place: NDArray[np.uint8]) -> bool:
    """Put a JPEG where its pixels would be, if it is one for a device and there is room."""
    if len(data) > place.nbytes or not is_plain_jpeg(data):
        return False
    place.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    return True
