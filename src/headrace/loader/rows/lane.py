"""What a thread of the engine does with windows: at first itself, then through a process.

As `loader.lane`, for the same reason: a transform is Python, and Python runs one thread at a time.
"""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from headrace.engine.budget import Budget
from headrace.engine.shared import SharedMemory
from headrace.engine.slots import NOT_SHARED, Arrays
from headrace.engine.statistics import Counters
from headrace.errors import WorkerError
from headrace.jobs import to_portable
from headrace.loader.own_process import OwnProcess, Processes
from headrace.loader.process import ProcessLost
from headrace.loader.rows.plan import RowTask
from headrace.loader.rows.work import RowWork
from headrace.loader.sizes import PROCESS_BYTES

__all__ = ["RowLane", "RowLanes"]

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
        self.work = work
        self.processes = Processes(
            _MODULE,
            partial(_described, work, batch_size),
            budget,
            shared,
            most=processes,
            bytes_each=PROCESS_BYTES + work.rows.cache_bytes,
        )

    def __call__(self, counters: Counters) -> RowLane:
        return RowLane(self, counters)


def _described(work: RowWork, batch_size: int) -> Any:
    """What a process must know; None if it cannot be told."""
    sent = to_portable((work, batch_size))
    if sent is None:
        _log.warning(
            "prepare or transform cannot be sent to worker processes: threads do the work, one "
            "at a time where it is Python; define them in a module, or install cloudpickle"
        )
    return sent


class RowLane:
    """One thread's way of doing tasks."""

    def __init__(self, lanes: RowLanes, counters: Counters) -> None:
        self._work, self._counters = lanes.work, counters
        self._own = OwnProcess(lanes.processes, counters)

    def __repr__(self) -> str:
        return f"<RowLane of {self._own!r}>"

    def __call__(self, task: RowTask, arrays: Arrays, place: int) -> None:
        """Fill the rows of a task's windows."""
        process = self._own.ready() if place != NOT_SHARED else None
        if process is not None:
            try:
                _, error = process.fill(task.lines, place, _NO_TEXTS, self._counters)
                if error is not None:
                    raise error
                return
            except ProcessLost as lost:
                self._own.lost(lost, partial(self._died_over, task))
        started = perf_counter()
        self._work.fill(task.lines, arrays, self._counters)
        self._own.worked += perf_counter() - started

    def close(self) -> None:
        """Give everything back."""
        self._own.close()

    def stop(self) -> None:
        """Cut off a process that does not answer."""
        self._own.stop()

    def _died_over(self, task: RowTask, cause: str) -> WorkerError:
        window = int(task.lines[0, 2])
        file, row = self._work.rows.place(window)
        return WorkerError(
            f"a worker process died ({cause}) while it transformed windows, the first of them "
            f"window {window}, row {row}",
            file=file,
            remedy="Its own message stands above; workers=0 runs the transform here",
        )


#: Windows have no texts.
_NO_TEXTS = SimpleNamespace(language={}, robot={})
