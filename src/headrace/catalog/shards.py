"""Work on the shards of a dataset: their bytes, the processes that share the work, its progress."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.catalog.manifest import MISSING, cannot_write
from headrace.engine.machine import allowed_cpus
from headrace.errors import CatalogError, DataError, DatasetError, HeadraceError
from headrace.formats.features import FEATURES_FILE, Schema, read_features
from headrace.formats.tfrecord import FOOTER, check_payload, record_places
from headrace.jobs import ProcessPool, WorkerLost

if TYPE_CHECKING:
    from rich.progress import Progress

#: Called with the bytes and steps of a shard that are done.
Report = Callable[[int, int], None]

# -- bytes ---------------------------------------------------------------------------------------

_RELEASE = 32 << 20  # mapped pages are given back after this many bytes, so memory stays flat


def shard_stat(path: Path) -> tuple[int, int]:
    """Size and time of change of a shard; (MISSING, 0) if it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return MISSING, 0
    return stat.st_size, stat.st_mtime_ns


class ShardBytes:
    """The bytes of a shard, for one pass from front to back."""

    def __init__(self, buffer: bytes | mmap.mmap, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self._released = 0

    def read(self, offset: int, length: int) -> bytes:
        """A copy of a few bytes."""
        return self.buffer[offset : offset + length]

    @contextmanager
    def payload(self, offset: int, length: int) -> Iterator[memoryview]:
        """A record's payload, not copied; an error if its checksum is wrong. Reads all of it."""
        end = offset + length
        with memoryview(self.buffer) as whole, whole[offset:end] as payload:
            try:
                check_payload(payload, self.read(end, FOOTER))
            except DataError as error:
                raise error.within(offset=offset) from None
            yield payload

    def records(self, expected: int) -> Iterator[tuple[int, int]]:
        """Payload offset and length of every record; an error if there are not as many as expected.

        The memory of records that were passed is given back.
        """
        found = 0
        for offset, length in record_places(self.read, self.size):
            yield offset, length
            found += 1
            self._passed(offset + length + FOOTER)
        if found != expected:
            raise DatasetError(
                f"the shard holds {found} records, but dataset_info.json says {expected}",
                offset=self.size,
                remedy="The metadata is of another version: copy dataset_info.json again"
                if found > expected
                else "The shard was not copied completely or is of another version: copy it "
                "again, or continue without what is missing (`headrace index --quarantine`)",
            )

    def _passed(self, position: int) -> None:
        if isinstance(self.buffer, mmap.mmap) and position - self._released >= _RELEASE:
            first = self._released - self._released % mmap.PAGESIZE
            last = position - position % mmap.PAGESIZE
            self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
            self._released = position


@contextmanager
def open_shard(path: Path, *, mapped: bool, whole: bool) -> Iterator[ShardBytes]:
    """Open a shard for one pass, over the `whole` of it or hopping.

    Mapped, pages that the pass skips are never touched; but a file that shrinks meanwhile kills
    the process. So worker processes map, and work in the caller's process does not.
    """
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block
            raise OSError(errno.EINVAL, "it is not a regular file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            opened: bytes | mmap.mmap = (
                mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
                if mapped and size
                else file.read()
            )
            if whole and isinstance(opened, mmap.mmap):
                opened.madvise(mmap.MADV_SEQUENTIAL)  # cold, six times as fast as without
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DatasetError(
            f"the shard cannot be read: {error.strerror}",
            file=str(path),
            remedy="Check its permissions and the disk",
        ) from None
    try:
        yield ShardBytes(opened, len(opened))
    finally:
        if isinstance(opened, mmap.mmap):
            opened.close()


# -- processes -----------------------------------------------------------------------------------

#: Below this size the work is done before a worker has started (0.2 s), so none is.
IN_PROCESS_BYTES = 32 << 20
_CAUSES = {
    -7: "the shard was cut short while it was read, or the disk could not read it",
    -9: "it was killed, perhaps because the machine ran out of memory",
}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A piece of work on one shard."""

    function: str  #: "module:name", called with (job, schema, report, mapped=)
    job: dict[str, Any]  #: JSON values, with at least `folder` and `file`
    size: int  #: bytes of the shard, for order and progress


class ShardPool:
    """Up to `workers` processes (default: one per CPU), started when first needed."""

    def __init__(self, workers: int | None = None) -> None:
        self._processes = ProcessPool(f"{__name__}:work", workers or allowed_cpus(whole_node=True))

    def __repr__(self) -> str:
        return f"<ShardPool {self._processes!r}>"

    def run(
        self, title: str, tasks: list[ShardTask], progress: BuildProgress
    ) -> list[dict[str, Any]]:
        """Perform all tasks, largest first; their results in order. An error ends them all."""
        total = sum(task.size for task in tasks)
        done = [(0, 0)] * len(tasks)
        progress.begin(title, total)

        def report(number: int, done_bytes: int, steps: int) -> None:
            done[number] = (done_bytes, steps)
            progress.advance(sum(b for b, _ in done), sum(s for _, s in done))

        results: list[dict[str, Any]] = [{} for _ in tasks]
        if total <= IN_PROCESS_BYTES:
            for n, task in enumerate(tasks):
                results[n] = _perform(task.function, task.job, partial(report, n), mapped=False)
            return results

        order = sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
        jobs = [[tasks[number].function, tasks[number].job] for number in order]
        try:
            for place, result in self._processes.run(
                jobs, lambda place, state: report(order[place], *state)
            ):
                number = order[place]
                results[number] = result
                report(number, tasks[number].size, result["steps"])
        except WorkerLost as lost:
            job = tasks[order[lost.job]].job
            raise CatalogError(
                f"{lost}: {_CAUSES.get(lost.exit_code, 'see its own message above')}",
                file=str(Path(job["folder"], job["file"])),
                remedy="Run it again: shards that were finished are kept",
            ) from None
        return results

    def close(self) -> None:
        """End the workers."""
        self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def work(job: Any, report: Callable[[Any], None]) -> Any:
    """What a worker of the pool does for each job."""
    function, values = job
    return _perform(function, values, lambda size, steps: report([size, steps]), mapped=True)


def _perform(function: str, job: dict[str, Any], report: Report, *, mapped: bool) -> dict[str, Any]:
    module, _, name = function.partition(":")
    features = Path(job["folder"]) / FEATURES_FILE
    try:
        schema = _schema(job["folder"], features.stat().st_mtime_ns)
        result: dict[str, Any] = getattr(import_module(module), name)(
            job, schema, report, mapped=mapped
        )
        return result
    except OSError as error:
        raise cannot_write(error, str(job.get("out", job["folder"]))) from None
    except HeadraceError as error:
        raise error.within(file=str(Path(job["folder"], job["file"]))) from None


@lru_cache(maxsize=4)  # the time of change is part of the key
def _schema(folder: str, changed_ns: int) -> Schema:  # noqa: ARG001
    return read_features(Path(folder) / FEATURES_FILE)


# -- progress ------------------------------------------------------------------------------------


class BuildProgress(Protocol):
    """Is told what happens during a build."""

    def begin(self, title: str, total_bytes: int) -> None:
        """Shards of a dataset, `total_bytes` in all, will be scanned."""

    def advance(self, done_bytes: int, steps: int) -> None:
        """`done_bytes` and `steps` of this dataset have been scanned so far."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Quiet:
    """Shows nothing but counts everything that was built."""

    def __init__(self) -> None:
        self.steps = 0
        self.bytes = 0
        self.notes: list[str] = []
        self._before = (0, 0)

    def begin(self, title: str, total_bytes: int) -> None:  # noqa: ARG002
        self._before = (self.bytes, self.steps)

    def advance(self, done_bytes: int, steps: int) -> None:
        self.bytes, self.steps = self._before[0] + done_bytes, self._before[1] + steps

    def note(self, text: str) -> None:
        self.notes.append(text)


class ProgressBar(Quiet):
    """A bar on stderr with the rate and the time left; nothing when stderr is not a terminal."""

    def __init__(self, verb: str = "indexing", unit: str = "frames") -> None:
        super().__init__()
        self._verb, self._unit = verb, unit
        self._bar: Progress | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def begin(self, title: str, total_bytes: int) -> None:
        super().begin(title, total_bytes)
        self._started = time.monotonic()
        if self._bar is None and sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(f"{self._verb} {title}", total=total_bytes, rate="")

    def advance(self, done_bytes: int, steps: int) -> None:
        super().advance(done_bytes, steps)
        if self._bar is not None:
            rate = steps / max(1e-3, time.monotonic() - self._started)
            (task,) = self._bar.task_ids
            self._bar.update(task, completed=done_bytes, rate=f"{rate:,.0f} {self._unit}/s")

    def note(self, text: str) -> None:
        super().note(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr)


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
