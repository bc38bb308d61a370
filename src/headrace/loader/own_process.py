"""A process for each thread of the engine: started late, used when ready, given up when it dies.

Why threads have processes is told in `loader.lane`.
"""

from __future__ import annotations

import logging
import os
import signal
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any

from headrace.engine.budget import Budget
from headrace.engine.shared import SharedMemory
from headrace.engine.statistics import Counters
from headrace.errors import BudgetError, WorkerError
from headrace.loader.process import ProcessLost, SampleProcess, described

__all__ = ["OwnProcess", "Processes"]

#: Seconds that a thread works before it starts a process: a loader that is used for a few batches
#: starts none, and the first batch has the CPUs for itself. Starting takes 0.3 s of CPU time.
START_AFTER = 0.2

_log = logging.getLogger("headrace")


class Processes:
    """Starts processes of a module, as many as there may be, each charged to the budget.

    `about` gives what they must know, asked for once; None: they cannot be had.
    """

    def __init__(
        self,
        module: str,
        about: Callable[[], Any],
        budget: Budget,
        shared: SharedMemory | None,
        *,
        most: int,
        bytes_each: int,
    ) -> None:
        self._module, self._value, self._budget = module, about, budget
        self._shared = shared
        self._left = most if shared is not None else 0
        self._bytes = bytes_each
        self._about: int | None = None
        self._lock = Lock()

    @property
    def left(self) -> int:
        """How many may be started yet."""
        return self._left

    def start(self) -> SampleProcess | None:
        """One more; None if the budget or the system has no room for it."""
        with self._lock:  # threads come here at about the same moment
            if not self._left or self._shared is None:
                return None
            self._left -= 1
            if self._about is None:
                value = self._value()
                if value is None:
                    self._left = 0
                    return None
                self._about = described(value)
                weakref.finalize(self, os.close, self._about).atexit = False
        try:
            self._budget.charge(self._bytes, "a worker process")
        except BudgetError:
            return None
        try:
            return SampleProcess(self._module, self._about, self._shared.fd, self._budget)
        except OSError as error:  # no more processes, files or memory
            self._budget.release(self._bytes)
            _log.warning("a worker process could not be started (%s): its thread goes on", error)
            return None
        except BaseException:
            self._budget.release(self._bytes)
            raise

    def end(self, process: SampleProcess) -> None:
        """Give one up."""
        process.close()
        self._budget.release(self._bytes)


class OwnProcess:
    """The process of one thread."""

    def __init__(self, processes: Processes, counters: Counters) -> None:
        self._processes, self._counters = processes, counters
        self._process: SampleProcess | None = None
        self._begun = False  # it is ready and does the work
        self._none = not processes.left
        self._stopped = False
        self.worked = 0.0  #: seconds that the thread has worked itself

    def __repr__(self) -> str:
        return f"{self._process if self._begun else 'its thread'}"

    def ready(self) -> SampleProcess | None:
        """The process, if it can do the work by now; starts it when it is time."""
        if self._begun:
            return self._process
        if self._none or self.worked < START_AFTER:
            return None
        if self._process is None:
            self._process = self._processes.start()
            self._none = self._process is None
            return None
        if not self._process.ready:
            return None
        try:
            self._process.begin()
        except ProcessLost as lost:
            self.lost(lost, None)
            return None
        self._counters.process = self._process.pid
        self._begun = True
        return self._process

    def lost(self, lost: ProcessLost, at_work: Callable[[str], WorkerError] | None) -> None:
        """It has died: go on without it, unless its work may have killed it, or we did."""
        self.close()
        self._none = True
        killed = lost.exit_code in (-signal.SIGKILL, -signal.SIGTERM)
        if at_work is not None and (self._stopped or not killed):
            raise at_work(lost.cause)
        _log.warning(
            "a worker process died (%s%s): its thread goes on without it",
            lost.cause,
            ", perhaps for want of memory" if lost.exit_code == -signal.SIGKILL else "",
        )

    def stop(self) -> None:
        """Cut it off if it does not answer. Called by another thread."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End it and give its memory back."""
        if self._process is not None:
            self._processes.end(self._process)
            self._process = None
        self._begun = False
        self._counters.process = 0
