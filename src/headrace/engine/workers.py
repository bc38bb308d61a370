"""Workers: the threads of an engine, each with a process of its own, fill rows of batches.

Python runs one thread at a time, and every frame takes that turn ten times; from about four CPUs on
passing it round takes longer than decoding, and a training step's own Python waits for it as well
(`docs/decisions/0009-processes.md` has the figures). So each thread starts a process as soon
as it has worked for a moment, continues by itself until the process is ready, and from then on only
passes tasks to it. The first batch does not wait for processes; where one cannot be started, or is
killed, its thread does the work. Callers see none of this.

What is done is a `Work`: an object that can be pickled, and that fills rows of a slot's arrays from
a plan, a matrix of integers. Slots cross by shared memory; a task and its answer are one short
message each. A process is a plain subprocess (see `jobs`) that ends with its socket, so none is
left behind when the program is killed.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.engine.slots import (
    NOT_SHARED,
    Arrays,
    ArraySpec,
    Budget,
    SharedMemory,
    map_region,
    slot_bytes,
    slot_views,
)
from headrace.engine.statistics import Counters
from headrace.errors import BudgetError, HeadraceError, WorkerError
from headrace.jobs import from_portable, start_python, to_portable

#: Seconds that a thread works before it starts a process: a loader that is used for a few batches
#: starts none, and the first batch has the CPUs for itself. Starting takes 0.3 s of CPU time.
START_AFTER = 0.2
#: What a worker process holds beside its reading and decoding: the interpreter and the libraries.
#: Measured at work: 37 MB anonymous on Python 3.11 with OpenCV 4, 66 MB on 3.12 with OpenCV 5.
PROCESS_BYTES = 64 << 20

_PROGRAM = "headrace.engine.workers:serve"

_log = logging.getLogger("headrace")

#: Which rows are to be filled, and with what: integers for each. The engine only passes it on.
Plan: TypeAlias = NDArray[np.int64]


class Done(NamedTuple):
    """What came of a plan."""

    rows: int  #: rows filled, from the first on
    error: Exception | None = None  #: why the next one could not be filled
    extras: Any = None  #: what does not fit into arrays (texts), as the work's caller wants it


class Charges(Protocol):
    """A memory budget, in this process or in the parent."""

    def charge(self, size: int, what: str, /) -> None:
        """Hold `size` more bytes, or raise."""

    def release(self, size: int, /) -> None:
        """Hold `size` bytes less."""


class Filler(Protocol):
    """A work with memory and files of its own: for one thread."""

    def fill(self, plan: Plan, arrays: Arrays, counters: Counters, how: Any) -> Done:
        """Fill rows; `how` is what the task says beside the plan. What it raises ends the task."""

    def close(self) -> None:
        """Give memory and files back."""


class Work(Protocol):
    """What workers do. Pickled once, and unpickled in each process."""

    def open(self, budget: Charges, /) -> Filler:
        """A filler that charges its memory to a budget."""

    def enter_process(self) -> None:
        """Called once in a worker process, before anything else."""

    def died_over(self, plan: Plan, cause: str, /) -> WorkerError:
        """The error for a process that crashed while it filled a plan."""


#: Fills rows by a plan, in a thread or a process.
Fill: TypeAlias = Callable[[Plan, Any], Done]


class Workers:
    """Makes the workers of an engine.

    `perform(task, fill)` does a task with any number of calls of `fill`. Up to `processes` of the
    workers get a process, each charged to the budget with `process_bytes`.
    """

    def __init__(
        self,
        work: Work,
        perform: Callable[[Any, Fill], None],
        specs: Mapping[str, ArraySpec],
        budget: Budget,
        shared: SharedMemory | None,
        *,
        processes: int,
        process_bytes: int = PROCESS_BYTES,
    ) -> None:
        self.work, self.perform, self.budget = work, perform, budget
        self._specs, self._shared, self._bytes = specs, shared, process_bytes
        self._left = processes if shared is not None else 0
        self._description: int | None = None
        self._lock = Lock()

    def __call__(self, counters: Counters) -> Worker:
        return Worker(self, counters)

    @property
    def processes_left(self) -> int:
        """How many processes may still be started."""
        return self._left

    def start_process(self) -> _Process | None:
        """One more process; None if the budget or the system has no room for it."""
        with self._lock:  # threads come here at about the same moment
            if not self._left or self._shared is None:
                return None
            self._left -= 1
            if self._description is None:
                described = _pickled(self.work)
                if described is None:
                    self._left = 0
                    _log.warning(
                        "the functions of this loader cannot be sent to worker processes: threads "
                        "do the work, one at a time where it is Python; define the functions in a "
                        "module, or install cloudpickle"
                    )
                    return None
                self._description = _unnamed_file(pickle.dumps((described, dict(self._specs))))
                weakref.finalize(self, os.close, self._description).atexit = False
        try:
            self.budget.charge(self._bytes, "a worker process")
        except BudgetError:
            return None
        try:
            return _Process(self._description, self._shared.fd, self.budget)
        except OSError as error:  # no more processes, files or memory
            self.budget.release(self._bytes)
            _log.warning("a worker process could not be started (%s): its thread continues", error)
            return None
        except BaseException:
            self.budget.release(self._bytes)
            raise

    def end_process(self, process: _Process) -> None:
        """End a process and give its memory back."""
        process.close()
        self.budget.release(self._bytes)


class Worker:
    """One thread of the engine, and its process where it has one."""

    def __init__(self, workers: Workers, counters: Counters) -> None:
        self._workers, self._counters = workers, counters
        self._process: _Process | None = None
        self._process_works = False
        self._no_process = not workers.processes_left
        self._stopped = False
        self._filler: Filler | None = None  # in this thread
        self._worked = 0.0  # seconds, in this thread

    def __repr__(self) -> str:
        return f"<Worker, {self._process if self._process_works else 'a thread alone'}>"

    def __call__(self, task: Any, arrays: Arrays, place: int) -> None:
        """Perform a task into a slot."""
        self._workers.perform(task, lambda plan, how: self.fill(plan, arrays, place, how))

    def fill(self, plan: Plan, arrays: Arrays, place: int, how: Any) -> Done:
        """Fill rows of a slot; `place` is where it lies in shared memory."""
        process = self._ready_process() if place != NOT_SHARED else None
        if process is not None:
            self._close_filler()  # the process has memory of its own
            try:
                return process.fill(plan, place, how, self._counters)
            except _Lost as lost:
                self._handle_lost(lost, plan)
        if self._filler is None:
            self._filler = self._workers.work.open(self._workers.budget)
        started = perf_counter()
        try:
            return self._filler.fill(plan, arrays, self._counters, how)
        finally:
            self._worked += perf_counter() - started

    def stop(self) -> None:
        """Cut off a process that does not answer. Called by another thread."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Give everything back."""
        self._end_process()
        self._close_filler()

    def _ready_process(self) -> _Process | None:
        """The process, if it can do the work by now; starts it when it is time."""
        if self._process_works:
            return self._process
        if self._no_process or self._worked < START_AFTER:
            return None
        if self._process is None:
            self._process = self._workers.start_process()
            self._no_process = self._process is None
            return None
        if not self._process.has_answered:
            return None
        try:
            self._process.begin()
        except _Lost as lost:
            self._handle_lost(lost, None)
            return None
        self._counters.process = self._process.pid
        self._process_works = True
        return self._process

    def _handle_lost(self, lost: _Lost, plan: Plan | None) -> None:
        """The process has died: continue without it, unless its work may have killed it."""
        self._end_process()
        self._no_process = True
        killed = lost.exit_code in (-signal.SIGKILL, -signal.SIGTERM)
        if plan is not None and (self._stopped or not killed):
            raise self._workers.work.died_over(plan, lost.cause)
        _log.warning(
            "a worker process died (%s%s): its thread continues without it",
            lost.cause,
            ", perhaps because memory ran out" if lost.exit_code == -signal.SIGKILL else "",
        )

    def _end_process(self) -> None:
        if self._process is not None:
            self._workers.end_process(self._process)
            self._process = None
        self._process_works = False
        self._counters.process = 0

    def _close_filler(self) -> None:
        if self._filler is not None:
            self._filler.close()
            self._filler = None


# -- a process, seen from its thread -------------------------------------------------------------


class _Lost(Exception):
    """The process has ended."""

    def __init__(self, exit_code: int, said: str = "") -> None:
        self.exit_code = exit_code  #: negative: the signal
        self.cause = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        if said:
            self.cause += f": {said.strip()}"
        super().__init__(self.cause)


class _Process:
    """A worker process. It is started at once, and may be used when it `has_answered`."""

    def __init__(self, description: int, memory: int, budget: Charges) -> None:
        """Descriptors of what it needs to know and of the slots' shared memory."""
        self._budget = budget
        self._charged = 0
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                fds = (theirs.fileno(), description, memory)
                self._process = start_python(
                    _PROGRAM, *map(str, fds), pass_fds=fds, stdin=subprocess.DEVNULL
                )
        except OSError:
            self._socket.close()
            raise

    def __repr__(self) -> str:
        return f"process {self._process.pid}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_answered(self) -> bool:
        """Whether it has said anything yet, or has ended."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # ended
            return True
        return True

    def begin(self) -> None:
        """Take its word that it is ready."""
        message = self._receive()
        if message[0] == "failed":
            raise _Lost(self._process.wait(), message[1])

    def fill(self, plan: Plan, place: int, how: Any, counters: Counters) -> Done:
        """As `Filler.fill`, into the slot at a place."""
        spans = counters.spans is not None
        self._send((place, plan.shape[1], plan.tobytes(), how, spans))
        while (message := self._receive())[0] == "charge":
            self._send(self._charge(*message[1:]))
        if message[0] == "failed":
            raise WorkerError(
                f"a worker process failed: {message[1]}", remedy="This is a fault of headrace"
            )
        kind, worked, *result = message
        counters.merge(*worked)
        if kind == "raised":
            raise result[0]
        return Done(*result)

    def kill(self) -> None:
        """End it, whatever it is doing; a thread that waits for an answer gets `_Lost`."""
        self._process.kill()

    def close(self) -> None:
        """End it and give its memory back to the budget."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._budget.release(self._charged)
        self._charged = 0

    def _charge(self, size: int, what: str) -> HeadraceError | None:
        """What the process asks of the budget."""
        try:
            self._budget.charge(size, what)
        except HeadraceError as error:
            return error
        self._charged += size
        return None

    def _send(self, message: Any) -> None:
        try:
            send(self._socket, message)
        except OSError:
            raise _Lost(self._process.wait()) from None

    def _receive(self) -> Any:
        try:
            return receive(self._socket)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise _Lost(self._process.wait()) from None


def _pickled(work: Work) -> bytes | None:
    """A work for worker processes; None if it cannot be sent.

    Plain pickle where that will do: cloudpickle is only needed for functions of a script.
    """
    try:
        data = pickle.dumps((sys.path, pickle.dumps(work, pickle.HIGHEST_PROTOCOL)))
        if b"__main__" not in data:
            return data
    except Exception:  # objects of users raise anything
        pass
    return to_portable(work)


def _unnamed_file(data: bytes) -> int:
    """A descriptor of a file in memory, for any number of processes."""
    fd = os.memfd_create("headrace-work", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


# -- in the process ------------------------------------------------------------------------------


def serve() -> None:
    """The program of a worker process; it ends quietly with its parent."""
    fd, description, memory = map(int, sys.argv[1:])
    _prefer_as_oom_victim()
    parent = socket.socket(fileno=fd)
    try:
        _serve(parent, description, memory)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone
    except BaseException:
        with contextlib.suppress(OSError):
            send(parent, ("failed", traceback.format_exc()))
        os._exit(1)


def _serve(parent: socket.socket, description: int, memory: int) -> None:
    with mmap.mmap(description, 0, access=mmap.ACCESS_READ) as data:  # all share its position
        described, specs = pickle.loads(data)
    work: Work = from_portable(described)
    work.enter_process()
    size = slot_bytes(specs)
    slots: dict[int, Arrays] = {}  # by place; places are used again, so there are few
    filler: Filler | None = None
    send(parent, ("ready",))
    while True:
        place, width, data, how, spans = receive(parent)
        counters = Counters(spans=spans)
        answer: tuple[Any, ...]
        try:
            if filler is None:
                filler = work.open(_ParentBudget(parent))
            if place not in slots:
                slots[place] = slot_views(specs, map_region(memory, place, size))
            plan = np.frombuffer(data, np.int64).reshape(-1, width)
            done = filler.fill(plan, slots[place], counters, how)
            answer = ("done", counters.values(), *done)
        except Exception as error:  # a user's function raises anything: the consumer gets it
            answer = ("raised", counters.values(), _sendable(error))
        send(parent, answer)


class _ParentBudget:
    """The budget that the parent keeps."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent

    def charge(self, size: int, what: str) -> None:
        send(self._parent, ("charge", size, what))
        if (error := receive(self._parent)) is not None:
            raise error

    def release(self, size: int) -> None:
        """Everything is given back when the process ends, and nothing before."""


def _sendable(error: Exception) -> Exception:
    """An error as it is, or its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        text = "".join(traceback.format_exception(error))
        return WorkerError(f"a worker process failed: {text}")
    return error


def _prefer_as_oom_victim() -> None:
    """Ask the kernel to kill us first when memory runs out: our thread takes over."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


# -- messages --------------------------------------------------------------------------------------

_SIZE = struct.Struct("<Q")
_AT_ONCE = 1 << 16


def send(connection: socket.socket, message: Any) -> None:
    """Send a value, pickled. Raises `OSError` if the other side is gone."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connection.sendall(_SIZE.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Wait for a value. Raises `EOFError` or `OSError` if the other side is gone.

    Each side waits for the other's answer before it sends more, so what arrives is one message and
    never the beginning of another.
    """
    data = connection.recv(_AT_ONCE)
    while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
        more = connection.recv(1 << 20)
        if not more:
            raise EOFError
        data += more
    return pickle.loads(memoryview(data)[_SIZE.size :])
