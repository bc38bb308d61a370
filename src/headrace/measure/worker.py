"""The process that measures: `python -m headrace.measure.worker FOLDER`, started by `isolated`.

It finds `request.json` in the folder, does what it says, and reports in JSON lines on stdout. On
SIGTERM it writes what it has measured so far, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from headrace.engine.statistics import Span
from headrace.errors import BudgetError, HeadraceError, SelectionError, UsageError
from headrace.loader import Batch, Loader
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import Opened, Skips, Traces, Validates, check_installed
from headrace.measure.clock import Step
from headrace.measure.job import BenchSettings, Job
from headrace.measure.limit import decode_limit, storage_limit
from headrace.measure.machine import tree_cpu_seconds, tree_read_bytes
from headrace.measure.runs import MEASURED, RunWriter, source_counts, write_json
from headrace.measure.trace import TRACED_SECONDS, write_trace

_REPORT_SECONDS = 0.5

#: Sends a message to the process that watches.
Report: TypeAlias = Callable[[dict[str, Any]], None]


class _Stopped(BaseException):
    """SIGTERM came."""


def _stop(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _measure(request: dict[str, Any], folder: Path, report: Report) -> dict[str, Any]:
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
    with ExitStack() as stack:
        opened = stack.enter_context(baseline.open(job, converted))
        ready = time.perf_counter()
        validations = _Validations(baseline.name, opened, settings, report)
        trace = _Trace(opened, folder) if request.get("profile") else None
        with RunWriter(folder, batches=True) as run:
            found = _Loop(opened, settings, run, report, validations, trace).run(imported)
        found |= {"import_s": imported - began, "setup_s": ready - imported}
        if trace is not None:
            found["trace"] = trace.write()
        # Some backends take long to close, or never do: what was measured is safe by then.
        write_json(folder / MEASURED, found)
        report({"phase": "closing"})
        began = time.perf_counter()
        stack.close()
        found["close_s"] = time.perf_counter() - began
    return found


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


class _Loop:
    """Takes batches as a training loop would, and records each."""

    def __init__(
        self,
        opened: Opened,
        settings: BenchSettings,
        run: RunWriter,
        report: Report,
        validations: _Validations,
        trace: _Trace | None = None,
    ) -> None:
        self._opened, self._settings, self._run = opened, settings, run
        self._report, self._validations, self._trace = report, validations, trace
        self._told = time.perf_counter()
        self._since = [0, 0.0]  # samples and stall since the last report

    def run(self, started: float) -> dict[str, Any]:
        """Until enough is measured, or SIGTERM comes; what was found."""
        settings, clock = self._settings, time.perf_counter
        batches: Iterator[Batch] = iter(self._opened)
        found: dict[str, Any] = {}
        before: dict[str, Any] = {}
        warm_from = measured_from = clock()
        first = samples = 0
        warmup = True
        try:
            while True:
                begun = clock()
                batch = next(batches)
                fetched = clock()
                batch.frames[:, 0, 0, 0, 0].sum()  # so that nothing is left to be done for it
                looked = clock()
                found.setdefault("first_batch_s", looked - started)
                if settings.compute_ms:
                    time.sleep(settings.compute_ms / 1000)
                ended = clock()
                if self._trace is not None and not warmup:
                    self._trace.step(begun, fetched, ended)
                step = Step(ended, ended - begun, fetched - begun, warmup)
                self._record(batch, step, looked - fetched)
                samples += 0 if warmup else len(batch)
                del batch
                taken = self._run.batches
                if warmup:
                    long_enough = ended - warm_from >= settings.warmup_seconds
                    if taken >= settings.warmup and long_enough:
                        warmup, before = False, self._account()
                        first, measured_from = taken, clock()
                    continue
                self._validations.after(taken - first)
                if settings.over(ended - measured_from, taken - first):
                    break
        except _Stopped:
            found["stopped"] = True
        finally:
            self._run.damaged(self._opened.damaged() if isinstance(self._opened, Skips) else ())
        if not warmup:
            found["elapsed_s"] = clock() - measured_from - self._validations.seconds
            found["batches"], found["samples"] = self._run.batches - first, samples
            found["before"], found["after"] = before, self._account()
            found |= self._validations.figures()
        return found

    def _record(self, batch: Batch, step: Step, look_s: float) -> None:
        counts = source_counts(batch.dataset, batch.names)
        self._run.batch(step, samples=len(batch), counts=counts, look_s=look_s)
        self._since[0] += len(batch)
        self._since[1] += step.wait_s
        passed = step.now - self._told
        if passed > _REPORT_SECONDS:
            self._report(
                {
                    "phase": "warming up" if step.warmup else "measuring",
                    "batches": self._run.batches,
                    "samples_per_s": self._since[0] / passed,
                    "stalled": self._since[1] / passed,
                }
            )
            self._told, self._since = step.now, [0, 0.0]

    def _account(self) -> dict[str, Any]:
        """What has been spent so far."""
        return {
            "cpu_s": tree_cpu_seconds(os.getpid()),
            "read_bytes": tree_read_bytes(os.getpid()),
            "figures": dict(self._opened.figures()),
        }


class _Trace:
    """Records the loop and the backend's workers for some seconds, and writes that as a trace."""

    def __init__(self, opened: Opened, folder: Path) -> None:
        self._backend = opened if isinstance(opened, Traces) else None
        self._folder = folder
        self._loop: list[Span] = []
        self._workers: Sequence[Sequence[Span]] = ()
        self._until: float | None = None
        self._ended = False

    def step(self, begun: float, fetched: float, ended: float) -> None:
        """A step of the loop; recording begins with the first."""
        if self._ended:
            return
        if self._until is None:
            self._until = ended + TRACED_SECONDS
            if self._backend is not None:
                self._backend.begin_trace(self._folder)
        self._loop += [("wait for a batch", begun, fetched), ("step", fetched, ended)]
        if ended >= self._until:
            self._end()

    def _end(self) -> None:
        if self._until is not None and not self._ended and self._backend is not None:
            self._workers = self._backend.end_trace()
        self._ended = True

    def write(self) -> str:
        """The file, in the run's folder."""
        self._end()
        workers = {f"worker {n}": spans for n, spans in enumerate(self._workers)}
        path = write_trace(self._folder, {"loop": self._loop, **workers})
        return str(path.relative_to(self._folder))


class _Validations:
    """A pass of a few validation batches every so many training batches."""

    def __init__(
        self, backend: str, opened: Opened, settings: BenchSettings, report: Report
    ) -> None:
        self._every, self._batches = settings.validate_every, settings.validate_batches
        self._opened, self._report = opened, report
        self.seconds = 0.0  #: spent in them, which is not time of the training
        self._starts: list[float] = []
        if self._every and not isinstance(opened, Validates):
            raise UsageError(
                f"the backend {backend!r} has no validation",
                remedy="Leave validate_every out, or run headrace or tfdata",
            )

    def after(self, batches: int) -> None:
        if not self._every or batches % self._every or not isinstance(self._opened, Validates):
            return
        began = time.perf_counter()
        first = None
        for number, batch in enumerate(self._opened.validation(self._batches)):
            batch.frames[:, 0, 0, 0, 0].sum()
            first = time.perf_counter() - began if first is None else first
            del batch
            self._report({"phase": "validating", "alive": (len(self._starts), number)})
        self.seconds += time.perf_counter() - began
        if first is not None:
            self._starts.append(first)

    def figures(self) -> dict[str, Any]:
        """How long the first batch of a validation took, and how many passes there were."""
        if not self._starts:
            return {}
        return {
            "validations": len(self._starts),
            "validation_start_s": sum(self._starts) / len(self._starts),
            "validation_start_max_s": max(self._starts),
            "validation_s": self.seconds,
        }


def _convert(request: dict[str, Any], _folder: Path, report: Report) -> dict[str, Any]:
    """Write the data in a baseline's own format."""
    baseline = find_baseline(request["backend"])
    check_installed(baseline)
    assert baseline.convert is not None
    report({"phase": "converting"})
    done = baseline.convert(Job.from_dict(request["job"]), Path(request["converted"]))
    return {"seconds": done.seconds, "bytes": done.bytes}


def _limit(request: dict[str, Any], _folder: Path, report: Report) -> dict[str, Any]:
    """What the machine allows: reading and decoding the same draws with nothing else."""
    job = Job.from_dict(request["job"])
    with Loader(job.mixture, job.loader, keep_free=0) as loader:
        report({"phase": "measuring the decode limit"})
        decode = decode_limit(loader, seconds=request["seconds"], processes=job.loader.workers)
        report({"phase": "measuring the storage limit"})
        storage = storage_limit(
            loader, seconds=request["seconds"] / 2, processes=job.loader.workers
        )
        asked = loader.statistics().shares
    return {
        "decode_limit_samples_per_s": decode.samples_per_s,
        "storage_limit_bytes_per_s": storage.bytes_per_s,
        "storage_limit_samples_per_s": storage.samples_per_s,
        "processes": decode.processes,
        "asked": asked,
    }


def main() -> None:
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
        carry_out = {"run": _measure, "convert": _convert, "limit": _limit}[request["do"]]
        found = carry_out(request, folder, report)
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
    write_json(folder / MEASURED, found)
    report({"done": True})
    sys.stderr.flush()
    os._exit(0)  # threads of other frameworks may not end by themselves, and all is measured


if __name__ == "__main__":
    main()
