"""Scanning shards in parallel processes.

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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.catalog.scan import ScanJob, scan_shard
from headrace.errors import CatalogError, HeadraceError
from headrace.formats.layout import Part

__all__ = ["ScanPool", "allowed_cpus"]

#: Below this many bytes the scan is over before a worker has started (0.3 s).
IN_PROCESS_BYTES = 32 << 20

Report = Callable[[ScanJob, int, int], None]  #: (job, bytes so far, steps so far)


def allowed_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    job: ScanJob | None = None
    size: int = 0
    pending: bytes = b""


class ScanPool:
    """Up to `workers` processes that scan shards; started when first needed."""

    def __init__(self, workers: int | None = None) -> None:
        self._limit = workers or allowed_cpus()
        self._workers: list[_Worker] = []

    def __repr__(self) -> str:
        return f"<ScanPool {len(self._workers)}/{self._limit} workers>"

    def run(self, jobs: Iterable[tuple[ScanJob, int]], parts: list[Part], report: Report) -> None:
        """Scan all jobs (each with its size in bytes); the first error ends the others."""
        waiting = deque(sorted(jobs, key=lambda item: -item[1]))
        total = sum(size for _, size in waiting)
        if self._limit == 1 or total <= IN_PROCESS_BYTES:
            for job, size in waiting:
                result = scan_shard(job, parts, partial(report, job))
                report(job, size, result.steps)
            return
        try:
            self._run(waiting, report)
        except BaseException:
            self.close()
            raise

    def _run(self, waiting: deque[tuple[ScanJob, int]], report: Report) -> None:
        while len(self._workers) < min(self._limit, len(waiting)):
            self._workers.append(_Worker(_start()))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                _assign(worker, waiting)
            while any(worker.job for worker in self._workers):
                for key, _ in selector.select():
                    worker = key.data
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        raise _died(worker)
                    *lines, worker.pending = (worker.pending + data).split(b"\n")
                    for line in lines:
                        _receive(worker, json.loads(line), report)
                        if worker.job is None:
                            _assign(worker, waiting)

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

    def __enter__(self) -> ScanPool:
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


def _assign(worker: _Worker, waiting: deque[tuple[ScanJob, int]]) -> None:
    """Hand a worker its next job, if there is one."""
    worker.job, worker.size = waiting.popleft() if waiting else (None, 0)
    if worker.job is None:
        return
    assert worker.process.stdin
    try:
        worker.process.stdin.write(json.dumps(asdict(worker.job)).encode() + b"\n")
        worker.process.stdin.flush()
    except BrokenPipeError:
        raise _died(worker) from None


def _receive(worker: _Worker, message: dict[str, Any], report: Report) -> None:
    job = worker.job
    assert job is not None
    if "error" in message:
        raise HeadraceError.from_dict(message["error"])
    done = bool(message["done"])
    report(job, worker.size if done else message["bytes"], message["steps"])
    if done:
        worker.job = None


def _died(worker: _Worker) -> CatalogError:
    code = worker.process.wait()
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = {
        -7: "the shard was cut short while it was read",
        -9: "the machine may have run out of memory",
    }.get(code, "its own message stands above")
    job = worker.job
    return CatalogError(
        f"a process that indexes shards died ({cause}): {hint}",
        file=str(Path(job.folder, job.file)) if job else None,
        remedy="Run it again: shards that were finished are kept",
    )
