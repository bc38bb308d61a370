"""What a thread of the engine does with windows: at first itself, then through a process.

As `loader.lane`, for the same reason: a transform is Python, and Python runs one thread at a time.
"""

from __future__ import annotations

import logging
import os
import signal
import weakref
from threading import Lock
from time import perf_counter
from types import SimpleNamespace

from headrace.engine.budget import Budget
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import NOT_SHARED, Arrays
from headrace.engine.statistics import Counters
from headrace.errors import BudgetError, WorkerError
from headrace.loader.process import ProcessLost, SampleProcess, described
from headrace.loader.rows.plan import RowTask
from headrace.loader.rows.work import RowWork
from headrace.loader.settings import PROCESS_BYTES
from headrace.processes import to_portable

__all__ = ["RowLane", "RowLanes"]

#: As in `loader.lane`: seconds that a thread works before it starts a process.
START_AFTER = 0.2
_MODULE = "headrace.loader.rows.worker"

_log = logging.getLogger("headrace")


class RowLanes:
    """What all lanes of a loader share; calling it makes one."""

    def __init__(
        self,
        work: RowWork,
        batch_size: int,
        budget: Budget,
        processes: int,
        shared: SharedMemory | None,
    ) -> None:
        self.work, self.budget = work, budget
        self.shared = shared  #: None: no processes
        self.process_bytes = PROCESS_BYTES + work.rows.cache_bytes
        self._batch_size = batch_size
        self._left = processes
        self._about: int | None = None
        self._lock = Lock()

    def __call__(self, counters: Counters) -> RowLane:
        return RowLane(self, counters)

    def process(self) -> SampleProcess | None:
        """Fills windows in a process; None if there is no room for one, or no way."""
        with self._lock:  # threads come here at about the same moment
            if self.shared is None or not self._left:
                return None
            self._left -= 1
            if self._about is None and not self._describe():
                self._left = 0
                return None
            about = self._about
        assert about is not None
        try:
            self.budget.charge(self.process_bytes, "a worker process")
        except BudgetError:
            return None
        try:
            return SampleProcess(about, self.shared.fd, self.budget, module=_MODULE)
        except OSError as error:  # no more processes, files or memory
            self.budget.release(self.process_bytes)
            _log.warning("a worker process could not be started (%s): its thread goes on", error)
            return None

    def _describe(self) -> bool:
        sent = to_portable((self.work, self._batch_size))
        if sent is None:
            _log.warning(
                "prepare or transform cannot be sent to worker processes: threads do the work, one "
                "at a time where it is Python; define them in a module, or install cloudpickle"
            )
            return False
        self._about = described(sent)
        weakref.finalize(self, os.close, self._about).atexit = False
        return True


class RowLane:
    """One thread's way of doing tasks."""

    def __init__(self, lanes: RowLanes, counters: Counters) -> None:
        self._lanes = lanes
        self._counters = counters
        self._process: SampleProcess | None = None
        self._begun = False  # the process is ready and does the work
        self._no_process = lanes.shared is None
        self._stopped = False
        self._worked = 0.0

    def __repr__(self) -> str:
        return f"<RowLane of {self._process if self._begun else 'its thread'}>"

    def __call__(self, task: RowTask, arrays: Arrays, place: int) -> None:
        """Fill the rows of a task's windows."""
        if place != NOT_SHARED and self._has_process():
            assert self._process is not None
            try:
                _, error = self._process.fill(task.lines, place, _NO_TEXTS, self._counters)
                if error is not None:
                    raise error
                return
            except ProcessLost as lost:
                self._lost(lost, task)
        started = perf_counter()
        self._lanes.work.fill(task.lines, arrays, self._counters)
        self._worked += perf_counter() - started

    def close(self) -> None:
        """Give everything back."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self._lanes.budget.release(self._lanes.process_bytes)
        self._begun = False
        self._counters.process = 0

    def stop(self) -> None:
        """Cut off a process that does not answer."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

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
            self._lost(lost, None)
            return False
        self._counters.process = self._process.pid
        self._begun = True
        return True

    def _lost(self, lost: ProcessLost, task: RowTask | None) -> None:
        """The process has died: go on without it, unless its work may have killed it."""
        self.close()
        self._no_process = True
        crashed = lost.exit_code not in (-signal.SIGKILL, -signal.SIGTERM)
        if self._stopped or (crashed and task is not None):
            window = int(task.lines[0, 2]) if task is not None else 0
            file, row = self._lanes.work.rows.place(window)
            raise WorkerError(
                f"a worker process died ({lost.cause}) while it transformed windows, the first of "
                f"them window {window}, row {row}",
                file=file,
                remedy="Its own message stands above; processes=False runs the transform here",
            )
        _log.warning("a worker process died (%s): its thread goes on without it", lost.cause)


#: Windows have no texts.
_NO_TEXTS = SimpleNamespace(language={}, robot={})
