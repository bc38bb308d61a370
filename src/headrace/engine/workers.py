"""Workers: the threads of an engine, each with a process of its own, fill rows of batches.

Python runs one thread at a time, and every frame takes that turn ten times; from about four CPUs on
passing it round takes longer than decoding, and a training step's own Python waits for it as well
(`docs/decisions/0009-processes.md` has the figures). So each thread starts a process as soon
as it has worked for a moment, continues by itself until the process is ready, and from then on only
passes tasks to it. The first batch does not wait for processes; where one cannot be started, its
thread does the work. One that is killed is replaced, and one that does not answer is named, ended
and replaced (`docs/decisions/0020-workers-come-back.md`). Callers see none of this.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_native_id
from time import monotonic, perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.engine.machine import cpu_time, end_with_parent
from headrace.engine.slots import (
    NOT_SHARED,
    Arrays,
    ArraySpec,
    Budget,
    Region,
    SharedMemory,
    map_region,
    slot_bytes,
    slot_views,
)
from headrace.engine.statistics import Counters
from headrace.errors import BudgetError, HeadraceError, WorkerError
from headrace.jobs import FOR_THE_PROGRAM, from_portable, start_python, to_portable

#: Seconds that a thread works before it starts a process: a loader that is used for a few batches
#: starts none, and the first batch has the CPUs for itself. Starting takes 0.3 s of CPU time.
START_AFTER = 0.2
#: What a worker process holds beside its reading and decoding: the interpreter and the libraries.
#: Measured at work: 37 MB anonymous on Python 3.11 with OpenCV 4, 66 MB on 3.12 with OpenCV 5.
PROCESS_BYTES = 64 << 20

#: A worker that makes no progress and uses no CPU time for this long is named and, if it is a
#: process, ended: its work is done by another. Tasks take milliseconds, a slow disk seconds. One
#: that computes is named after twice this time and left alone.
SILENT_SECONDS = 30.0
#: After this long without progress the run ends with an error instead of waiting on. File servers
#: take minutes to come back; NCCL gives up after 10, and its message does not say why.
GIVE_UP_SECONDS = 300.0
#: Times in a row that a worker gets another process, where each lived less than `LONG_LIFE`
#: seconds: what is killed again and again (memory runs out) costs 0.3 s of CPU time each time.
REPLACEMENTS = 5
LONG_LIFE = 600.0

#: What the work itself may have caused; by any other signal somebody ended the process.
_CRASHES = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGSYS,
    signal.SIGTRAP,
)

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

    def error_at(
        self, plan: Plan, at: int, problem: str, remedy: str | None = None, /
    ) -> WorkerError:
        """An error that says where row `at` of a plan comes from; the remedy is for a crash."""


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
        self._places: Region | None = None  # a number for each process: see `Counters.at`
        self._free_places = list(range(self._left))
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
                self._places = self._shared.region(8 * self._left)
            self._left -= 1
            place = self._free_places.pop()
            assert self._places is not None
        try:
            self.budget.charge(self._bytes, "a worker process")
        except BudgetError:
            self._give_back(place)
            return None
        try:
            return _Process(self._description, self._shared.fd, self._places, place, self.budget)
        except BaseException as error:
            self.budget.release(self._bytes)
            self._give_back(place)
            if not isinstance(error, OSError):
                raise
            # no more processes, files or memory
            _log.warning("a worker process could not be started (%s): its thread continues", error)
            return None

    def end_process(self, process: _Process) -> None:
        """End a process and give its memory back; there may then be another."""
        process.close()
        self.budget.release(self._bytes)
        self._give_back(process.place)

    def _give_back(self, place: int) -> None:
        with self._lock:
            self._left += 1
            self._free_places.append(place)

    def close(self) -> None:
        """All workers have been closed."""
        with self._lock:
            self._left, self._places = 0, None
            if self._description is not None:
                os.close(self._description)
                self._description = None


@dataclass(slots=True)
class _Task:
    """What a worker is doing, and how long it has shown no progress."""

    plan: Plan
    reached: int = -1  #: row of the plan, the furthest that any try has come
    cpu: int = -1  #: time used
    since: float = 0.0  #: seconds without a further row
    silent: float = 0.0  #: seconds of these at the end without CPU time
    told: bool = False
    ended: bool = False  #: the process was ended because it was silent


class Worker:
    """One thread of the engine, and its process where it has one."""

    def __init__(self, workers: Workers, counters: Counters) -> None:
        """Called by its thread."""
        self._workers, self._counters = workers, counters
        self._thread = get_native_id()
        self._process: _Process | None = None
        self._process_works = False
        self._no_process = not workers.processes_left
        self._replaced = 0  # processes that others took the place of, in a row
        self._stopped = False
        self._filler: Filler | None = None  # in this thread
        self._worked = 0.0  # seconds, in this thread
        self._task: _Task | None = None

    def __repr__(self) -> str:
        return f"<Worker, {self._process if self._process_works else 'a thread alone'}>"

    def __call__(self, task: Any, arrays: Arrays, place: int) -> None:
        """Perform a task into a slot."""
        self._workers.perform(task, lambda plan, how: self.fill(plan, arrays, place, how))

    def fill(self, plan: Plan, arrays: Arrays, place: int, how: Any) -> Done:
        """Fill rows of a slot; `place` is where it lies in shared memory."""
        self._counters.at[0] = 0
        self._task = task = _Task(plan)
        try:
            process = self._ready_process() if place != NOT_SHARED else None
            while process is not None:
                self._close_filler()  # the process has memory of its own
                try:
                    return process.fill(plan, place, how, self._counters)
                except _Lost as lost:
                    self._handle_lost(lost, at_work=True)
                # What silenced it may silence this thread too, and a thread cannot be ended.
                process = self._new_process() if task.ended else None
            if self._filler is None:
                self._filler = self._workers.work.open(self._workers.budget)
            started = perf_counter()
            try:
                return self._filler.fill(plan, arrays, self._counters, how)
            finally:
                self._worked += perf_counter() - started
        finally:
            self._task = None

    def watch(self, seconds: float) -> WorkerError | None:
        """`seconds` have passed: the error, if it has been silent for too long. By another thread.

        A process in an uninterruptible read ends only when that returns, and until then its rows
        are its own: the thread waits for its end, and the error is all that can be done.
        """
        task, process = self._task, self._process if self._process_works else None
        if task is None:
            return None
        at = self._counters.at[0] if process is None else process.at
        if at > task.reached:
            task.reached, task.since, task.silent, task.told = at, 0.0, 0.0, False
            return None
        pid, thread = (os.getpid(), self._thread) if process is None else (process.pid,) * 2
        used, task.cpu = task.cpu, cpu_time(pid, thread)
        task.since += seconds
        task.silent = task.silent + seconds if used == task.cpu else 0.0
        who = "a worker thread" if process is None else f"worker process {pid}"
        if task.silent >= GIVE_UP_SECONDS:
            return self._workers.work.error_at(
                task.plan,
                at,
                f"{who} has not answered for {task.silent:.0f} s",
                "Look at the storage that the file lies on, then resume the run",
            )
        silent = task.silent >= SILENT_SECONDS
        ends = silent and process is not None and not task.ended
        if ends or (not task.told and (silent or task.since >= 2 * SILENT_SECONDS)):
            task.told = True
            what = "has not answered" if silent else "has been at work on the same place"
            what = f"{who} {what} for {task.since:.0f} s"
            what += ": it is ended and its work done by another" if ends else ""
            _log.warning("%s", self._workers.work.error_at(task.plan, at, what, ""))
        if ends and process is not None:
            task.ended = True
            process.kill()
        return None

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
            self._start_process()
            return None
        return self._begun_process() if self._process.has_answered else None

    def _new_process(self) -> _Process | None:
        """A process that takes the place of another, as soon as it is ready."""
        if not self._no_process:
            self._start_process()
        return None if self._process is None else self._begun_process()

    def _start_process(self) -> None:
        self._process = self._workers.start_process()
        self._no_process = self._process is None

    def _begun_process(self) -> _Process | None:
        """The process, waiting until it is ready."""
        assert self._process is not None
        try:
            self._process.begin()
        except _Lost as lost:
            self._handle_lost(lost, at_work=False)
            return None
        self._counters.process = self._process.pid
        self._process_works = True
        return self._process

    def _handle_lost(self, lost: _Lost, *, at_work: bool) -> None:
        """The process has died: replace it, unless its work may have killed it."""
        task, process = self._task, self._process
        assert task is not None
        assert process is not None
        self._end_process()
        killed = lost.exit_code < 0 and -lost.exit_code not in _CRASHES
        if self._stopped or (at_work and not killed):
            self._no_process = True
            problem = f"worker process {process.pid} died ({lost.cause})"
            raise self._workers.work.error_at(task.plan, process.at, problem)
        self._replaced = self._replaced + 1 if process.age < LONG_LIFE else 1
        self._no_process = not killed or self._replaced > REPLACEMENTS
        guess = ", perhaps because memory ran out"
        _log.warning(
            "worker process %d died (%s%s): %s",
            process.pid,
            lost.cause,
            guess if lost.exit_code == -signal.SIGKILL and not task.ended else "",
            "its thread continues without it"
            if self._no_process
            else f"another takes its place ({self._replaced} of {REPLACEMENTS} times in a row)",
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

    def __init__(
        self, description: int, memory: int, places: Region, place: int, budget: Charges
    ) -> None:
        """Descriptors of what it needs to know and of the slots' shared memory.

        In `places`, a region of that memory, number `place` is how far it has come.
        """
        self.place = place
        self._at = places.array().data.cast("q")[place : place + 1]
        self._started = monotonic()
        self._budget = budget
        self._charged = 0
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                fds = (theirs.fileno(), description, memory)
                numbers = (*fds, places.place, place)
                self._process = start_python(
                    _PROGRAM,
                    *map(str, numbers),
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    blocked=FOR_THE_PROGRAM,
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
    def age(self) -> float:
        """Seconds since it was started."""
        return monotonic() - self._started

    @property
    def at(self) -> int:
        """Which row of its plan it is filling."""
        return int(self._at[0])

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
        self._at[0] = 0
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
    fd, description, memory, places, place = map(int, sys.argv[1:])
    end_with_parent()  # a thread outlives its process; who is not stopped sees the socket's end
    _prefer_as_oom_victim()
    parent = socket.socket(fileno=fd)
    try:
        at = map_region(memory, places, 8 * (place + 1)).data.cast("q")[place:]
        _serve(parent, description, memory, at)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone
    except BaseException:
        with contextlib.suppress(OSError):
            send(parent, ("failed", traceback.format_exc()))
        os._exit(1)


def _serve(parent: socket.socket, description: int, memory: int, at: memoryview) -> None:
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
        counters = Counters(at, spans=spans)
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
    """Ask the kernel to kill us first when memory runs out: another takes our place."""
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
