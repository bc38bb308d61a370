"""What a fresh process does for a benchmark: `python -m headrace.measure.bench.worker FOLDER`.

It finds `request.json` in the folder, does what it says, and reports in JSON lines on stdout. On
SIGTERM it writes what it has measured so far, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.errors import BudgetError, HeadraceError, SelectionError, UsageError
from headrace.loader import Batch
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import Opened, check_installed
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.bench.validations import Validations
from headrace.measure.job import Job
from headrace.measure.process_tree import tree_cpu_seconds, tree_read_bytes
from headrace.measure.runs import RunWriter, Step, source_counts, write_json

__all__: list[str] = []

_REPORT_SECONDS = 0.5


class _Stopped(BaseException):
    """SIGTERM came."""


def _stop(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


class _Recorded:
    """Writes one record a batch, and tells a person watching."""

    def __init__(self, folder: Path, report: Any) -> None:
        self._run = RunWriter(folder, batches=True)
        self._report = report
        self._told = time.perf_counter()
        self._since = [0, 0.0]  # samples and stall since the last report
        self.samples = 0

    @property
    def batches(self) -> int:
        """Recorded so far."""
        return self._run.batches

    def add(
        self, batch: Batch, fetch_s: float, look_s: float, step_s: float, *, warmup: bool
    ) -> None:
        """A batch that took so long to fetch, to look at, and in all."""
        now = time.perf_counter()
        self._run.batch(
            Step(now, step_s, fetch_s, warmup),
            samples=len(batch),
            counts=source_counts(batch.dataset, batch.names),
            look_s=look_s,
        )
        self.samples += len(batch)
        self._since[0] += len(batch)
        self._since[1] += fetch_s
        if now - self._told > _REPORT_SECONDS:
            self._report(
                {
                    "phase": "warming up" if warmup else "measuring",
                    "batches": self.batches,
                    "samples_per_s": self._since[0] / (now - self._told),
                    "stalled": self._since[1] / (now - self._told),
                }
            )
            self._told, self._since = now, [0, 0.0]

    def close(self) -> None:
        """Nothing more comes."""
        self._run.close()


def _measure(request: dict[str, Any], folder: Path, report: Any) -> dict[str, Any]:
    """Run a backend."""
    baseline = find_baseline(request["backend"])
    check_installed(baseline)
    settings = BenchSettings(**request["settings"])
    _hold_to(settings.cpus)
    job = Job.from_dict(request["job"])
    report({"phase": "importing"})
    began = time.perf_counter()
    for module in baseline.needs:
        import_module(module)
    imported = time.perf_counter()
    report({"phase": "opening"})
    converted = Path(request["converted"]) if request.get("converted") else None
    with baseline.open(job, converted) as opened:
        ready = time.perf_counter()
        times = _Recorded(folder, report)
        validations = Validations(baseline.name, opened, settings, report)
        found = _iterate(opened, settings, times, validations, imported)
    return {"import_s": imported - began, "setup_s": ready - imported, **found}


def _hold_to(cpus: int | None) -> None:
    """Use the first so many of the allowed CPUs, and no others: what any backend then sees."""
    if cpus is None:
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cpus > len(allowed):
        raise UsageError(
            f"cpus is {cpus}, but {len(allowed)} are allowed", remedy=f"Give at most {len(allowed)}"
        )
    os.sched_setaffinity(0, allowed[:cpus])


def _iterate(
    opened: Opened,
    settings: BenchSettings,
    times: _Recorded,
    validations: Validations,
    started: float,
) -> dict[str, Any]:
    batches: Iterator[Batch] = iter(opened)
    clock = time.perf_counter
    found: dict[str, Any] = {}
    warm_from = measured_from = clock()
    first = samples = 0
    warmup = True
    pause = settings.compute_ms / 1000
    before: dict[str, Any] = {}
    try:
        while True:
            begun = clock()
            batch = next(batches)
            fetched = clock()
            batch.frames[:, 0, 0, 0, 0].sum()  # whatever was left to be done for it is done now
            looked = clock()
            if "first_batch_s" not in found:
                found["first_batch_s"] = looked - started
            if pause:
                time.sleep(pause)
            ended = clock()
            times.add(batch, fetched - begun, looked - fetched, ended - begun, warmup=warmup)
            samples += 0 if warmup else len(batch)
            del batch
            if warmup:
                long_enough = ended - warm_from >= settings.warmup_seconds
                if times.batches >= settings.warmup and long_enough:
                    warmup, before = False, _account(opened)
                    first, measured_from = times.batches, clock()
                continue
            validations.after(times.batches - first)
            if settings.over(ended - measured_from, times.batches - first):
                break
    except _Stopped:
        found["stopped"] = True
    if not warmup:
        found["elapsed_s"] = clock() - measured_from - validations.seconds
        found["batches"], found["samples"] = times.batches - first, samples
        found["before"], found["after"] = before, _account(opened)
        found |= validations.figures()
    times.close()
    return found


def _account(opened: Opened) -> dict[str, Any]:
    """What has been spent so far."""
    return {
        "cpu_s": tree_cpu_seconds(os.getpid()),
        "read_bytes": tree_read_bytes(os.getpid()),
        "figures": dict(opened.figures()),
    }


def _convert(request: dict[str, Any], report: Any) -> dict[str, Any]:
    """Write the data in a rival's own format."""
    baseline = find_baseline(request["backend"])
    check_installed(baseline)
    assert baseline.convert is not None
    report({"phase": "converting"})
    done = baseline.convert(Job.from_dict(request["job"]), Path(request["converted"]))
    return {"seconds": done.seconds, "bytes": done.bytes}


def _limit(request: dict[str, Any], report: Any) -> dict[str, Any]:
    """The yardsticks: reading and decoding the same draws with nothing else."""
    from headrace.measure.limit import decode_limit, storage_limit

    job = Job.from_dict(request["job"])
    with job.loader(keep_free=0) as loader:
        report({"phase": "measuring the decode limit"})
        decode = decode_limit(loader, seconds=request["seconds"], processes=job.workers)
        report({"phase": "measuring the storage limit"})
        storage = storage_limit(loader, seconds=request["seconds"] / 2, processes=job.workers)
        asked = loader.statistics().asked
    return {
        "decode_limit_samples_per_s": decode.samples_per_s,
        "storage_limit_bytes_per_s": storage.bytes_per_s,
        "storage_limit_samples_per_s": storage.samples_per_s,
        "processes": decode.processes,
        "asked": asked,
    }


def main() -> None:
    """Carry out the request."""
    folder = Path(sys.argv[1])
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print goes to the log

    def report(message: dict[str, Any]) -> None:
        try:
            messages.write(json.dumps(message) + "\n")
        except BrokenPipeError:  # nobody watches any more
            os._exit(1)

    request = json.loads((folder / "request.json").read_text())
    signal.signal(signal.SIGTERM, _stop)
    try:
        if request["do"] == "run":
            found = _measure(request, folder, report)
        elif request["do"] == "convert":
            found = _convert(request, report)
        else:
            found = _limit(request, report)
    except _Stopped:  # before there was anything to measure
        os._exit(0)
    except HeadraceError as error:
        refused = isinstance(error, UsageError | SelectionError | BudgetError)
        report({"error": str(error), "refused": refused})
        sys.exit(1)
    except MemoryError:
        report({"error": "out of memory (MemoryError)"})
        sys.exit(1)
    except Exception as error:
        report({"error": f"{type(error).__name__}: {error}"})
        raise
    write_json(folder / "measured.json", found)
    report({"done": True})
    sys.stderr.flush()
    os._exit(0)  # a rival's threads may not end by themselves, and all is measured


if __name__ == "__main__":
    main()
