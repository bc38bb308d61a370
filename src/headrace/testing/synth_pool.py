"""Run shard jobs in worker processes, or in this one.

Workers are plain subprocesses that speak JSON lines over pipes: no fork of a process with
threads, no import of the caller's main module, and a worker whose parent is gone notices.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

import headrace
from headrace.errors import HeadraceError
from headrace.testing.shards import ShardJob, ShardResult, write_job

__all__ = ["JobProgress", "run_jobs"]

#: Called with a job and the frames it has just written.
JobProgress: TypeAlias = Callable[[ShardJob, int], None]
_Done: TypeAlias = Generator[tuple[ShardJob, ShardResult], None, None]

_FEW_FRAMES = 400  # done here in less time than it takes to start a worker


def run_jobs(jobs: list[ShardJob], workers: int, progress: JobProgress) -> _Done:
    """Do all jobs in the given order and yield each as it is done."""
    workers = min(workers, len(jobs))
    if workers < 2 or not sys.executable or sum(job.frames for job in jobs) < _FEW_FRAMES:
        for job in jobs:
            yield job, write_job(job, functools.partial(progress, job))
        return
    with contextlib.closing(_Pool(workers)) as pool:
        yield from pool.run(jobs, progress)


@dataclass(eq=False)
class _Worker:
    """A worker process, what it is doing, and the part of a message that has arrived."""

    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    job: ShardJob | None = None
    received: bytearray = field(default_factory=bytearray)

    @staticmethod
    def start() -> _Worker:
        paths = [str(Path(headrace.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.testing.synth_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select must see everything that has not been handled
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            process_group=0,  # Ctrl-C is for this process, which then ends its workers
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return _Worker(process, process.stdin, process.stdout)

    def send(self, job: ShardJob) -> None:
        self.job = job
        try:
            self.stdin.write(json.dumps(job.to_dict()).encode() + b"\n")
        except BrokenPipeError:
            raise self._lost() from None

    def receive(self) -> list[dict[str, Any]]:
        """The messages that are complete; call when there is something to read."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            raise self._lost()
        self.received += data
        *lines, rest = self.received.split(b"\n")
        self.received = rest
        return [json.loads(line) for line in lines]

    def _lost(self) -> HeadraceError:
        return HeadraceError(
            f"a worker process ended with exit code {self.process.wait()}",
            dataset=self.job.dataset if self.job else None,
            remedy="If memory ran out, use workers=1",
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


class _Pool:
    """Workers that take the next job as soon as they have finished one."""

    def __init__(self, count: int) -> None:
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        try:
            for _ in range(count):
                self._workers.append(_Worker.start())
        except BaseException:
            self.close()
            raise

    def run(self, jobs: list[ShardJob], progress: JobProgress) -> _Done:
        waiting = iter(jobs)
        for worker in self._workers:
            self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
            self._hand_out(worker, waiting)
        while self._selector.get_map():
            for key, _ in self._selector.select():
                active: _Worker = key.data
                for message in active.receive():
                    job = active.job
                    assert job is not None
                    if "frames_done" in message:
                        progress(job, message["frames_done"])
                        continue
                    if "error" in message:
                        raise HeadraceError.from_dict(message["error"])
                    self._hand_out(active, waiting)
                    yield job, ShardResult(**message["result"])

    def _hand_out(self, worker: _Worker, waiting: Iterator[ShardJob]) -> None:
        job = next(waiting, None)
        if job is None:
            self._selector.unregister(worker.stdout)
        else:
            worker.send(job)

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._selector.close()
        for worker in self._workers:
            worker.end()
