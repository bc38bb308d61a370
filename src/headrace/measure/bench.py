"""Benchmarks: a backend in a fresh process, watched and archived; or several, taking turns."""

from __future__ import annotations

import logging
import shutil
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from headrace.config.documents import to_yaml
from headrace.errors import HeadraceError, UsageError
from headrace.files import atomic_write
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed, warn_remote
from headrace.measure.isolated import GRACE_SECONDS, Sight, Stop, supervise
from headrace.measure.job import BenchSettings, Job
from headrace.measure.machine import machine_facts
from headrace.measure.results import summarise
from headrace.measure.runs import RESULT, Outcome, new_run, write_json

_log = logging.getLogger("headrace")

#: Told what happens: a title ("headrace, round 2") and what is seen of the process.
Watch: TypeAlias = Callable[[str, Sight], None]

_LIMIT_SECONDS = 3.0
_LIMIT_TIMEOUT = 300.0
_CONVERT_TIMEOUT = 3600.0

#: Of a row of a comparison.
_FIGURES = (
    "samples_per_s",
    "limit_ratio",
    "first_batch_s",
    "setup_s",
    "close_s",
    "stall_s_per_step",
    "p50_s",
    "p99_s",
    "peak_rss_mb",
    "peak_anon_mb",
    "bytes_read_per_sample",
    "cpu_s_per_sample",
)


@dataclass(frozen=True)
class Begun:
    """A run's folder and what result.json says of the machine."""

    folder: Path
    name: str
    machine: dict[str, Any]

    def request(self, backend: str, job: Job, settings: BenchSettings) -> dict[str, Any]:
        """What is run, as `summarise` and the process that measures read it."""
        return {
            "name": self.name,
            "backend": backend,
            "job": job.to_dict(),
            "settings": settings.to_dict(),
            "machine": self.machine,
        }


def begin(runs: Path, name: str, job: Job, settings: BenchSettings, **more: Any) -> Begun:
    """Make the folder of a run; fails now if it cannot be written, not after the run."""
    folder = new_run(runs, name)
    root = job.mixture.root
    machine = machine_facts(Path(root) if root else None)
    write_json(folder / "machine.json", machine)
    config = {**more, "settings": settings.to_dict(), "job": job.to_dict()}
    atomic_write(folder / "config.yaml", to_yaml(config))
    return Begun(folder, name, machine)


class Conversion:
    """A copy of the data in a backend's own format, where it needs one; removed by `close`."""

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder, self._backend = folder / "conversions" / backend, backend
        self.data: Path | None = None  #: where it is; None: the backend reads the data as it is
        self.took: dict[str, Any] | None = None  #: seconds and bytes
        self.failed: Outcome | None = None

    def run(self, job: Job, watch: Watch, stop: Stop = lambda _: None) -> None:
        """Convert; `failed` says if that did not work."""
        if find_baseline(self._backend).convert is None:
            return
        data = self._folder / "data"
        data.mkdir(parents=True)
        request = {"do": "convert", "backend": self._backend, "job": job.to_dict()}
        outcome = supervise(
            self._folder,
            {**request, "converted": str(data)},
            timeout_s=_CONVERT_TIMEOUT,
            watch=lambda sight: watch(self._backend, sight),
            # Converting delivers no batches: only the memory counts.
            stop=lambda look: stop(replace(look, idle_s=0.0)),
        )
        if outcome.status != "complete":
            self.failed = replace(outcome, cause=f"converting: {outcome.cause}")
        else:
            self.data, self.took = data, outcome.measured

    def close(self) -> None:
        """Remove the copy; the log and what it took stay."""
        shutil.rmtree(self._folder / "data", ignore_errors=True)


def measure_limit(folder: Path, job: Job, watch: Watch) -> tuple[dict[str, Any] | None, Outcome]:
    """The decode and storage limits of a job, in a process of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    request = {"do": "limit", "job": job.to_dict(), "seconds": _LIMIT_SECONDS}
    outcome = supervise(
        folder, request, timeout_s=_LIMIT_TIMEOUT, watch=lambda sight: watch("limit", sight)
    )
    return outcome.measured, outcome


def mean_limit(limits: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The mean of several measurements of the same limits; None if all failed."""
    known = [limit for limit in limits if limit is not None]
    if not known:
        return None
    return {
        key: statistics.mean(each[key] for each in known) if isinstance(value, float) else value
        for key, value in known[-1].items()
    }


def run_once(
    folder: Path,
    begun: Begun,
    backend: str,
    job: Job,
    settings: BenchSettings,
    *,
    title: str,
    watch: Watch,
    conversion: Conversion | None = None,
    stop: Stop = lambda _: None,
    grace_s: float = GRACE_SECONDS,
    profile: bool = False,
) -> tuple[dict[str, Any], Outcome]:
    """Run a backend in a fresh process; the request that was made and how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    baseline = find_baseline(backend)
    request = begun.request(backend, job, settings)
    request |= {"do": "run", "shuffle": baseline.shuffle_of(job), "profile": profile}
    request["remote_sources"] = remote = dict(baseline.remote(job))
    warn_remote(backend, remote)
    if folder != begun.folder:
        request["name"] = folder.name
    if conversion is not None:
        request["converted"] = str(conversion.data) if conversion.data else None
        request["conversion"] = conversion.took
    outcome = supervise(
        folder,
        request,
        timeout_s=settings.timeout_s,
        watch=lambda sight: watch(title, sight),
        stop=stop,
        grace_s=grace_s,
    )
    return request, outcome


def bench(
    job: Job,
    backend: str = "headrace",
    settings: BenchSettings | None = None,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    limit: bool = True,
    draw: bool = True,
    watch: Watch = lambda _title, _sight: None,
    stop: Stop = lambda _: None,
    grace_s: float = GRACE_SECONDS,
    profile: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Benchmark one backend; the run's folder and what `result.json` in it says.

    `stop` may end the run, with a status and a cause of its own; after `grace_s` it is killed.
    `draw` writes the report too, `profile` a trace of some seconds (`trace`).
    """
    settings = settings or BenchSettings()
    begun = begin(runs, name or backend, job, settings, backend=backend)
    conversion = Conversion(begun.folder, backend)
    request = begun.request(backend, job, settings)
    limits = []
    try:
        conversion.run(job, watch, stop)
        outcome = conversion.failed or Outcome("complete")
        if limit and conversion.failed is None:
            # Before and after: other programs may have come or gone meanwhile.
            found, outcome = measure_limit(begun.folder / "limits" / "before", job, watch)
            limits.append(found)
        if conversion.failed is None and outcome.status != "interrupted":
            request, outcome = run_once(
                begun.folder,
                begun,
                backend,
                job,
                settings,
                title=backend,
                watch=watch,
                conversion=conversion,
                stop=stop,
                grace_s=grace_s,
                profile=profile,
            )
            if limit and outcome.status == "complete":
                limits.append(measure_limit(begun.folder / "limits" / "after", job, watch)[0])
    finally:
        conversion.close()
    result = summarise(begun.folder, request, outcome, mean_limit(limits))
    write_json(begun.folder / RESULT, result)
    if draw:
        draw_report(begun.folder)
    return begun.folder, result


def draw_report(folder: Path, *, comparison: bool = False) -> None:
    """Write the report of a run. What was measured is safe by now: a page that fails is a note."""
    from headrace.measure.report import write_comparison, write_run_report

    try:
        if comparison:
            write_comparison([folder], folder / "report.html")
        else:
            write_run_report(folder)
    except UsageError as error:  # the extra `plots` is not installed, or there is no space
        _log.warning("%s; then `headrace report %s`", error, folder)
    except Exception:
        with (folder / "log.txt").open("a") as log:
            log.write(traceback.format_exc())
        _log.warning("the report of %s could not be drawn; log.txt there says why", folder)


# -- several, side by side -------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What was found."""

    folder: Path
    rows: dict[str, dict[str, Any]]  #: by backend
    ratios: dict[str, dict[str, Any]]  #: the first backend over each other one, round by round
    interrupted: bool


def compare(
    jobs: Mapping[str, Job],
    settings: BenchSettings,
    *,
    runs: Path = Path("runs"),
    name: str = "versus",
    repeats: int = 3,
    limit: bool = True,
    watch: Watch = lambda _title, _sight: None,
) -> Comparison:
    """Benchmark backends (by name, each with its job) in turns; one that fails is a row."""
    if repeats < 1:
        raise UsageError(f"repeats is {repeats}", remedy="Give a number from 1 upwards")
    backends = list(jobs)
    for backend in backends:
        find_baseline(backend)  # a name that does not exist is an error before anything runs
    begun = begin(runs, name, jobs[backends[0]], settings, backends=backends, repeats=repeats)
    table = _Table(begun, jobs, settings, watch)
    try:
        table.prepare()
        for number in range(repeats):
            if limit and not table.interrupted:
                table.limit(number)
            # Turns rotate: nobody always runs first, on a machine that others have just warmed.
            shift = number % len(backends)
            for backend in [*backends[shift:], *backends[:shift]]:
                if not table.interrupted:
                    table.run(backend, number)
    finally:
        table.close()
    rows, ratios = table.rows(), table.ratios(backends[0])
    write_json(
        begun.folder / RESULT,
        {
            "name": name,
            "status": "interrupted" if table.interrupted else "complete",
            "comparison": rows,
            "ratios": ratios,
            "config": {
                "settings": settings.to_dict(),
                "jobs": {k: job.to_dict() for k, job in jobs.items()},
            },
            "machine": begun.machine,
        },
    )
    draw_report(begun.folder, comparison=True)
    return Comparison(begun.folder, rows, ratios, table.interrupted)


class _Table:
    """The runs so far."""

    def __init__(
        self, begun: Begun, jobs: Mapping[str, Job], settings: BenchSettings, watch: Watch
    ) -> None:
        self._begun, self._jobs, self._settings, self._watch = begun, jobs, settings, watch
        self._failed: dict[str, tuple[str, str | None]] = {}  # status and cause
        self._conversions = {backend: Conversion(begun.folder, backend) for backend in jobs}
        self._results: dict[str, dict[int, dict[str, Any]]] = {backend: {} for backend in jobs}
        self._limit: dict[str, Any] | None = None
        self.interrupted = False

    def prepare(self) -> None:
        """Whether each is installed, and its data converted."""
        for backend, job in self._jobs.items():
            try:
                check_installed(find_baseline(backend))
            except HeadraceError as error:
                self._failed[backend] = "not installed", str(error)
                continue
            conversion = self._conversions[backend]
            conversion.run(job, self._watch)
            if (failed := conversion.failed) is not None:
                self._failed[backend] = failed.status, failed.cause
                self._note(failed)

    def limit(self, number: int) -> None:
        job = next(iter(self._jobs.values()))
        found, outcome = measure_limit(
            self._begun.folder / "limits" / str(number + 1), job, self._watch
        )
        self._limit = found or self._limit
        self._note(outcome)

    def run(self, backend: str, number: int) -> None:
        if backend in self._failed:
            return
        folder = self._begun.folder / f"{backend}_{number + 1}"
        request, outcome = run_once(
            folder,
            self._begun,
            backend,
            self._jobs[backend],
            self._settings,
            title=f"{backend}, round {number + 1}",
            watch=self._watch,
            conversion=self._conversions[backend],
        )
        self._note(outcome)
        result = summarise(folder, request, outcome, self._limit)
        write_json(folder / RESULT, result)
        self._results[backend][number] = result
        draw_report(folder)

    def close(self) -> None:
        for conversion in self._conversions.values():
            conversion.close()

    def rows(self) -> dict[str, dict[str, Any]]:
        """A row a backend: median, lowest and highest of its complete runs, or why not."""
        return {backend: self._row(backend) for backend in self._jobs}

    def _row(self, backend: str) -> dict[str, Any]:
        results = list(self._results[backend].values())
        complete = [r for r in results if r["status"] == "complete"]
        broken = [r for r in results if r["status"] != "complete"]
        status, cause = ("complete", None) if complete else ("not run", None)
        if broken and not complete:
            status, cause = broken[0]["status"], broken[0]["cause"]
        elif broken:
            cause = f"{len(broken)} of {len(results)} runs: {broken[0]['cause']}"
        if backend in self._failed:
            status, cause = self._failed[backend]
        return {
            "status": status,
            "cause": cause,
            "shuffle": find_baseline(backend).shuffle_of(self._jobs[backend]),
            "conversion": self._conversions[backend].took,
            **{figure: _range([r[figure] for r in complete]) for figure in _FIGURES},
        }

    def ratios(self, first: str) -> dict[str, dict[str, Any]]:
        """Samples a second of the first backend over each other one's, of the same rounds."""
        found = {}
        ours = self._results[first]
        for backend, runs in self._results.items():
            values = [
                ours[n]["samples_per_s"] / run["samples_per_s"]
                for n, run in runs.items()
                if n in ours
                and ours[n]["status"] == run["status"] == "complete"
                and run["samples_per_s"]
            ]
            if backend != first and values:
                found[backend] = _range(values) or {}
        return found

    def _note(self, outcome: Outcome) -> None:
        self.interrupted = self.interrupted or outcome.status == "interrupted"


def _range(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "median": statistics.median(known),
        "min": min(known),
        "max": max(known),
        "runs": known,
    }
