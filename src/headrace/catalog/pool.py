"""Work on shards in parallel processes.

Workers are started as `python -m headrace.catalog.worker` and spoken to in JSON lines, not through
`multiprocessing`: nothing is forked from a program that may have threads, and a script that opens a
catalog needs no `if __name__ == "__main__"`. A worker that dies (killed, out of memory, a file cut
short under its memory map) is noticed and named; workers end when their input does, so none is left
behind when the parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.catalog.progress import BuildProgress
from headrace.catalog.tasks import perform
from headrace.errors import CatalogError, HeadraceError

__all__ = ["ShardPool", "ShardTask", "allowed_cpus"]

#: Below this many bytes the work is done before a worker has started (0.3 s), so none is.
IN_PROCESS_BYTES = 32 << 20

Report = Callable[[int, int, int], None]  #: (number of the task, bytes and steps so far)


def allowed_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A piece of work on one shard."""

    kind: str  #: name in `tasks.TASKS`
    job: dict[str, Any]  #: the task's own values, with at least `folder` and `file`
    size: int  #: bytes of the shard, for order and progress


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    task: int | None = None  # its number in the list of tasks
    pending: bytes = b""


class ShardPool:
    """Up to `workers` processes (default: one a CPU), started when first needed."""

    def __init__(self, workers: int | None = None) -> None:
        self._limit = workers or allowed_cpus()
        self._workers: list[_Worker] = []

    def __repr__(self) -> str:
        return f"<ShardPool {len(self._workers)}/{self._limit} workers>"

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

        if total <= IN_PROCESS_BYTES:
            return [
                perform(task.kind, task.job, partial(report, number), mapped=False)
                for number, task in enumerate(tasks)
            ]
        try:
            return self._run(tasks, report)
        except BaseException:
            self.close()
            raise

    def _run(self, tasks: list[ShardTask], report: Report) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = [{} for _ in tasks]
        waiting = deque(sorted(range(len(tasks)), key=lambda number: -tasks[number].size))
        while len(self._workers) < min(self._limit, len(tasks)):
            self._workers.append(_Worker(_start()))

        def assign(worker: _Worker) -> None:
            worker.task = waiting.popleft() if waiting else None
            if worker.task is not None:
                _send(worker, tasks[worker.task])

        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                assign(worker)
            while any(worker.task is not None for worker in self._workers):
                for key, _ in selector.select():
                    worker = key.data
                    for message in _receive(worker, key.fd, tasks):
                        assert worker.task is not None
                        if "result" not in message:
                            report(worker.task, message["bytes"], message["steps"])
                            continue
                        results[worker.task] = message["result"]
                        report(worker.task, tasks[worker.task].size, message["result"]["steps"])
                        assign(worker)
        return results

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        self._workers = []

    def __enter__(self) -> ShardPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _start() -> subprocess.Popen[bytes]:
    # The package's own place first, so that a worker runs the same code as its parent.
    here = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([here, inherited] if inherited else [here])
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.catalog.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def _send(worker: _Worker, task: ShardTask) -> None:
    assert worker.process.stdin
    try:
        worker.process.stdin.write(json.dumps([task.kind, task.job]).encode() + b"\n")
        worker.process.stdin.flush()
    except BrokenPipeError:
        raise _died(worker, task) from None


def _receive(worker: _Worker, fd: int, tasks: list[ShardTask]) -> list[dict[str, Any]]:
    """Messages that have arrived whole; an error among them is raised."""
    data = os.read(fd, 1 << 16)
    if not data:
        raise _died(worker, None if worker.task is None else tasks[worker.task])
    *lines, worker.pending = (worker.pending + data).split(b"\n")
    messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for message in messages:
        if "error" in message:
            raise HeadraceError.from_dict(message["error"])
    return messages


def _died(worker: _Worker, task: ShardTask | None) -> CatalogError:
    code = worker.process.wait()
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = {
        -7: "the shard was cut short while it was read",
        -9: "it was killed, perhaps because the machine ran out of memory",
    }.get(code, "its own message stands above")
    return CatalogError(
        f"a process that works on shards died ({cause}): {hint}",
        file=str(Path(task.job["folder"], task.job["file"])) if task else None,
        remedy="Run it again: shards that were finished are kept",
    )
