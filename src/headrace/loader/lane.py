"""What a thread of the engine does with tasks: at first itself, then through a process of its own.

Python runs one thread at a time, and every frame takes that turn ten times; from about four CPUs on
handing it round takes longer than decoding, and a training step's own Python waits for it as well
(`docs/decisions/2026-11-15-processes.md` has the figures). So each thread starts a process as soon
as it has worked for a moment, goes on by itself until the process is ready, and from then on only
passes tasks to it. The first batch does not wait for processes; where one cannot be had, or is
killed, its thread does the work.
"""

from __future__ import annotations

import logging
import os
import signal
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from headrace.engine.budget import Budget
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import NOT_SHARED, Arrays, ArraySpec
from headrace.engine.statistics import Counters
from headrace.errors import BudgetError, DataError, WorkerError
from headrace.loader.opened import OpenedSource
from headrace.loader.plan import Draft, Sample, Task, read_lines
from headrace.loader.process import ProcessLost, SampleProcess, described
from headrace.loader.settings import PROCESS_BYTES, Settings
from headrace.loader.skipping import Errors
from headrace.loader.work import SampleReader
from headrace.reading.local import LocalFiles

__all__ = ["Lane", "Lanes"]

#: Seconds that a thread works before it starts a process: a loader that is used for a few batches
#: starts none, and the first batch has the CPUs for itself. Starting takes 0.3 s of CPU time.
START_AFTER = 0.2

_log = logging.getLogger("headrace")


class Lanes:
    """What all lanes of a loader share; calling it makes one."""

    def __init__(
        self,
        sources: Sequence[OpenedSource],
        files: LocalFiles,
        budget: Budget,
        errors: Errors,
        settings: Settings,
        specs: Mapping[str, ArraySpec],
        shared: SharedMemory | None,
    ) -> None:
        self.sources, self.files, self.budget, self.errors = sources, files, budget, errors
        self.settings = settings
        self.shared = shared  #: None: no processes
        self.keep = settings.encoded  #: whether JPEGs stay as they are from now on
        self._specs = specs
        self._about: int | None = None
        self._begun = 0  # processes
        self._lock = Lock()

    def __call__(self, counters: Counters) -> Lane:
        return Lane(self, counters)

    def reader(self, counters: Counters) -> SampleReader:
        """Fills samples in this process."""
        return SampleReader(
            self.sources,
            self.files,
            self.budget,
            counters,
            settings=self.settings,
            open_files=self.files.max_open // (2 * self.settings.threads),
        )

    def process(self) -> SampleProcess | None:
        """Fills samples in a process; None if the budget or the system has no room for one."""
        with self._lock:  # threads come here at about the same moment
            if self.shared is None or self._begun == self.settings.processes:
                return None
            self._begun += 1
        try:
            self.budget.charge(PROCESS_BYTES, "a worker process")
        except BudgetError:
            return None
        try:
            with self._lock:
                if self._about is None:
                    self._about = described((self.sources, self.settings, self._specs))
                    weakref.finalize(self, os.close, self._about).atexit = False
            return SampleProcess(self._about, self.shared.fd, self.budget)
        except OSError as error:  # no more processes, files or memory
            self.budget.release(PROCESS_BYTES)
            _log.warning("a worker process could not be started (%s): its thread goes on", error)
            return None
        except BaseException:
            self.budget.release(PROCESS_BYTES)
            raise


class Lane:
    """One thread's way of doing tasks."""

    def __init__(self, lanes: Lanes, counters: Counters, *, decode_all: bool = False) -> None:
        self._lanes = lanes
        self._decode_all = decode_all
        self._counters = counters
        self._reader: SampleReader | None = None  # in this thread
        self._process: SampleProcess | None = None
        self._begun = False  # the process is ready and does the work
        self._no_process = lanes.shared is None
        self._stopped = False
        self._worked = 0.0

    def __repr__(self) -> str:
        return f"<Lane of {self._process if self._begun else 'its thread'}>"

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
        self._end_process()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def stop(self) -> None:
        """Cut off a process that does not answer."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _fill(
        self, lines: NDArray[np.int64], draft: Draft, arrays: Arrays, place: int
    ) -> tuple[int, DataError | None]:
        keep = self._lanes.keep and not self._decode_all
        if place != NOT_SHARED and self._has_process():
            assert self._process is not None
            try:
                return self._process.fill(lines, place, draft, self._counters, keep=keep)
            except ProcessLost as lost:
                self._lost(lost, read_lines(lines))
        if self._reader is None:
            self._reader = self._lanes.reader(self._counters)
        started = perf_counter()
        try:
            return self._reader.fill(lines, arrays, draft, keep=keep)
        finally:
            self._worked += perf_counter() - started

    def _has_process(self) -> bool:
        """Whether the process can do the work by now; starts it when it is time."""
        if self._begun:
            return True
        if self._no_process or self._worked < START_AFTER:
            return False
        if self._process is None:
            self._process = self._lanes.process()
            self._no_process = self._process is None
            return False
        if not self._process.ready:
            return False
        try:
            self._process.begin()
        except ProcessLost as lost:
            self._lost(lost, ())
            return False
        if self._reader is not None:
            self._reader.close()  # the process has memory of its own
            self._reader = None
        self._counters.process = self._process.pid
        self._begun = True
        return True

    def _lost(self, lost: ProcessLost, samples: Sequence[Sample]) -> None:
        """The process has died: go on without it, unless its work may have killed it."""
        self._end_process()
        self._no_process = True
        crashed = lost.exit_code not in (-signal.SIGKILL, -signal.SIGTERM)
        if self._stopped or (crashed and samples):
            first = self._lanes.sources[samples[0].source] if samples else None
            raise WorkerError(
                f"a worker process died ({lost.cause}) while it read {len(samples)} samples, "
                "the first of them here",
                dataset=first.name if first else None,
                file=first.catalog.shard_file(samples[0].shard)[0] if first else None,
                episode=first.catalog.info(samples[0].episode).id if first else None,
                frame=samples[0].start if first else None,
                remedy="A damaged frame may have crashed a decoder: `headrace verify` looks at "
                "them one by one",
            )
        _log.warning(
            "a worker process died (%s%s): its thread goes on without it",
            lost.cause,
            ", perhaps for want of memory" if lost.exit_code == -signal.SIGKILL else "",
        )

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
            self._lanes.budget.release(PROCESS_BYTES)
        self._begun = False
        self._counters.process = 0
