"""What a thread of the engine does with tasks: at first itself, then through a process of its own.

Python runs one thread at a time, and every frame takes that turn ten times; from about four CPUs on
handing it round takes longer than decoding, and a training step's own Python waits for it as well
(`docs/decisions/2026-11-15-processes.md` has the figures). So each thread starts a process as soon
as it has worked for a moment, goes on by itself until the process is ready, and from then on only
passes tasks to it. The first batch does not wait for processes; where one cannot be had, or is
killed, its thread does the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from headrace.engine.budget import Budget
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import NOT_SHARED, Arrays
from headrace.engine.statistics import Counters
from headrace.errors import DataError, WorkerError
from headrace.loader.opened import OpenedSource
from headrace.loader.options import LoaderOptions
from headrace.loader.own_process import OwnProcess, Processes
from headrace.loader.plan import Draft, Task, read_lines
from headrace.loader.process import ProcessLost
from headrace.loader.sizes import PROCESS_BYTES, Sizes
from headrace.loader.skipping import Errors
from headrace.loader.work import SampleReader
from headrace.reading.local import LocalFiles

__all__ = ["Lane", "Lanes"]

_MODULE = "headrace.loader.process_worker"


class Lanes:
    """What all lanes of a loader share; calling it makes one."""

    def __init__(
        self,
        sources: Sequence[OpenedSource],
        files: LocalFiles,
        budget: Budget,
        errors: Errors,
        options: LoaderOptions,
        sizes: Sizes,
        shared: SharedMemory | None,
    ) -> None:
        self.sources, self.errors = sources, errors
        self.keep = "encoded" in sizes.specs  #: whether JPEGs stay as they are from now on
        self.processes = Processes(
            _MODULE,
            lambda: (sources, options, sizes.specs),
            budget,
            shared,
            most=sizes.processes,
            bytes_each=PROCESS_BYTES,
        )
        self._files, self._budget, self._options = files, budget, options
        self._open_files = files.max_open // (2 * sizes.threads)

    def __call__(self, counters: Counters) -> Lane:
        return Lane(self, counters)

    def reader(self, counters: Counters) -> SampleReader:
        """Fills samples in this process."""
        return SampleReader(
            self.sources,
            self._files,
            self._budget,
            counters,
            options=self._options,
            open_files=self._open_files,
        )


class Lane:
    """One thread's way of doing tasks; with `decode_all` no JPEG stays as it is."""

    def __init__(self, lanes: Lanes, counters: Counters, *, decode_all: bool = False) -> None:
        self._lanes, self._counters = lanes, counters
        self._decode_all = decode_all
        self._own = OwnProcess(lanes.processes, counters)
        self._reader: SampleReader | None = None  # in this thread

    def __repr__(self) -> str:
        return f"<Lane of {self._own!r}>"

    def __call__(self, task: Task, arrays: Arrays, place: int) -> None:
        """Fill the rows of a task's samples, replacing those that cannot be had."""
        lines = task.lines
        attempts: Counter[int] = Counter()
        while True:
            done, error = self._fill(lines, task.draft, arrays, place)
            if error is None:
                return
            (failed,) = read_lines(lines[done : done + 1])
            self._lanes.errors.skip(failed.draw, error)  # raises unless it may be skipped
            attempts[failed.row] += 1
            other = task.draft.planner.replacement(failed, attempts[failed.row])
            lines = np.concatenate([other, lines[done + 1 :]])

    def close(self) -> None:
        """Give everything back."""
        self._own.close()
        self._close_reader()

    def stop(self) -> None:
        """Cut off a process that does not answer."""
        self._own.stop()

    def _fill(
        self, lines: NDArray[np.int64], draft: Draft, arrays: Arrays, place: int
    ) -> tuple[int, DataError | None]:
        keep = self._lanes.keep and not self._decode_all
        process = self._own.ready() if place != NOT_SHARED else None
        if process is not None:
            self._close_reader()  # the process has memory of its own
            try:
                return process.fill(lines, place, draft, self._counters, keep=keep)
            except ProcessLost as lost:
                self._own.lost(lost, partial(self._died_over, lines))
        if self._reader is None:
            self._reader = self._lanes.reader(self._counters)
        started = perf_counter()
        try:
            return self._reader.fill(lines, arrays, draft, keep=keep)
        finally:
            self._own.worked += perf_counter() - started

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _died_over(self, lines: NDArray[np.int64], cause: str) -> WorkerError:
        (first,) = read_lines(lines[:1])
        source = self._lanes.sources[first.source]
        return WorkerError(
            f"a worker process died ({cause}) while it read {len(lines)} samples, the first of "
            "them here",
            dataset=source.name,
            file=source.catalog.shard_file(first.shard)[0],
            episode=source.catalog.info(first.episode).id,
            frame=first.start,
            remedy="A damaged frame may have crashed a decoder: `headrace verify` looks at "
            "them one by one",
        )
