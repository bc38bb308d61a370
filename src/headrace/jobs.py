"""Jobs in worker processes that exchange JSON lines with this one.

Workers are plain subprocesses, not `multiprocessing`: nothing is forked from a program that may
have threads, and a script that starts them needs no `if __name__ == "__main__"`. A worker that dies
is noticed. Workers end when their input does, so none is left behind when the parent is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from headrace.errors import HeadraceError

#: What a pool calls: (job, report progress) -> result; all values are JSON.
Perform: TypeAlias = Callable[[Any, Callable[[Any], None]], Any]


#: No thread pools of libraries: on 16 cores each worker would have 30 idle threads.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",  # Arrow's too
    "OPENCV_FOR_THREADS_NUM": "1",
}


#: Slurm and users send these to every process of a job; they are for the program, not for its
#: workers, which end when it does and by SIGKILL.
FOR_THE_PROGRAM = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start_python(
    program: str,
    *arguments: str,
    env: Mapping[str, str] = ONE_THREAD,
    blocked: Collection[signal.Signals] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a function ("module:name", called without arguments) or a module in a new process.

    It runs the same code as this process, in a process group of its own: Ctrl-C is for this
    process, which then ends its workers. `arguments` are its `sys.argv[1:]`, `env` is added to the
    environment; `blocked` signals never reach it.
    """
    module, _, name = program.partition(":")
    run = ("-c", f"from {module} import {name}; {name}()") if name else ("-m", module)
    # The package's own place first, so that a worker runs the same code as its parent.
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    # A process begins with the mask of the thread that starts it: no moment without protection.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", *run, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                **env,
            },
            process_group=0,
            **options,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def to_portable(value: Any) -> bytes | None:
    """A value with a person's functions in it, for a worker process; None if that cannot be.

    Functions of the script that runs are only known by its name `__main__`, which is another
    module in a worker: `cloudpickle`, where it is installed, sends their code instead.
    """
    try:
        import cloudpickle

        data = cloudpickle.dumps(value)
    except ImportError:
        try:
            data = pickle.dumps(value)
        except Exception:  # whatever a person's object raises
            return None
        if b"__main__" in data:
            return None
    except Exception:
        return None
    return pickle.dumps((sys.path, data))


def from_portable(data: bytes) -> Any:
    """The inverse of `to_portable`, which finds modules where the sender did."""
    paths, value = pickle.loads(data)
    sys.path.extend(path for path in paths if path not in sys.path)
    return pickle.loads(value)


class WorkerLost(Exception):
    """A worker ended in the middle of a job."""

    def __init__(self, job: int, exit_code: int) -> None:
        cause = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"a worker process died ({cause})")
        self.job = job  #: number of the job
        self.exit_code = exit_code  #: negative: the signal


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    job: int = -1  # number of the job it is doing
    received: bytes = b""  # the part of a message that has arrived

    @staticmethod
    def start(function: str) -> _Worker:
        process = start_python(
            "headrace.jobs:serve",
            function,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select must see everything that has not been handled
            blocked=FOR_THE_PROGRAM,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return _Worker(process, process.stdin, process.stdout)

    def send(self, number: int, job: Any) -> None:
        self.job = number
        try:
            self.stdin.write(json.dumps(job).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerLost(number, self.process.wait()) from None

    def receive(self) -> list[dict[str, Any]]:
        """The messages that are complete; called when there is something to read."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            raise WorkerLost(self.job, self.process.wait())
        *lines, self.received = (self.received + data).split(b"\n")
        return [json.loads(line) for line in lines]


class ProcessPool:
    """Up to `workers` processes that call a function, given as "module:name", for each job."""

    def __init__(self, function: str, workers: int) -> None:
        self._function = function
        self._limit = workers
        self._workers: list[_Worker] = []

    def __repr__(self) -> str:
        return f"<ProcessPool {self._function} {len(self._workers)}/{self._limit} workers>"

    def run(
        self, jobs: Sequence[Any], progress: Callable[[int, Any], None]
    ) -> Generator[tuple[int, Any], None, None]:
        """Start jobs in the given order and yield (number, result) of each as it is done.

        A job's error is raised here and ends all workers, and so does leaving the generator early.
        """
        waiting = deque(range(len(jobs)))
        while len(self._workers) < min(self._limit, len(jobs)):
            self._workers.append(_Worker.start(self._function))
        try:
            with selectors.DefaultSelector() as selector:

                def hand_out(worker: _Worker) -> None:
                    if waiting:
                        number = waiting.popleft()
                        worker.send(number, jobs[number])
                    else:
                        selector.unregister(worker.stdout)

                for worker in self._workers:
                    selector.register(worker.stdout, selectors.EVENT_READ, worker)
                    hand_out(worker)
                while selector.get_map():
                    for key, _ in selector.select():
                        for message in key.data.receive():
                            number = key.data.job
                            if "error" in message:
                                raise HeadraceError.from_dict(message["error"])
                            if "progress" in message:
                                progress(number, message["progress"])
                            else:
                                hand_out(key.data)
                                yield number, message["result"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.stdin.close()
            worker.stdout.close()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> None:
    """A worker's program: jobs from stdin, progress and results to stdout, until stdin ends."""
    module, _, name = sys.argv[1].partition(":")
    perform: Perform = getattr(importlib.import_module(module), name)
    # What a library prints must not end up between the messages.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        try:
            messages.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:  # the parent is gone
            os._exit(1)

    for line in sys.stdin:
        try:
            send({"result": perform(json.loads(line), lambda state: send({"progress": state}))})
        except HeadraceError as error:
            send({"error": error.to_dict()})
