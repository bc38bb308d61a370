"""Several backends side by side: fresh processes, taking turns, repeated, with the spread."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, UsageError
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed, shuffle_of
from headrace.measure.bench.run import (
    Begun,
    Watch,
    begin,
    conversion_folder,
    convert,
    draw,
    measure_limit,
    run_once,
)
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.job import Job
from headrace.measure.runs import Outcome, summarise, write_json

__all__ = ["Comparison", "compare"]

_FIGURES = (
    "samples_per_s",
    "limit_ratio",
    "first_batch_s",
    "setup_s",
    "stall_s_per_step",
    "p50_s",
    "p99_s",
    "peak_rss_mb",
    "peak_anon_mb",
    "bytes_read_per_sample",
    "cpu_s_per_sample",
)


@dataclass(frozen=True)
class Comparison:
    """What was found."""

    folder: Path
    rows: dict[str, dict[str, Any]]  #: by backend
    ratios: dict[str, dict[str, Any]]  #: the first backend over each other one, round by round
    interrupted: bool


def compare(
    jobs: dict[str, Job],
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
                    folder = table.run(backend, number)
                    if folder is not None:
                        draw(folder)
    finally:
        for backend in backends:
            shutil.rmtree(conversion_folder(begun.folder, backend) / "data", ignore_errors=True)
    rows, ratios = table.rows(), table.ratios(backends[0])
    write_json(
        begun.folder / "result.json",
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
    draw(begun.folder, comparison=True)
    return Comparison(begun.folder, rows, ratios, table.interrupted)


class _Table:
    """The runs so far."""

    def __init__(
        self, begun: Begun, jobs: dict[str, Job], settings: BenchSettings, watch: Watch
    ) -> None:
        self._begun, self._jobs, self._settings, self._watch = begun, jobs, settings, watch
        self._failed: dict[str, tuple[str, str]] = {}  # status and cause, of those that cannot run
        self._converted: dict[str, tuple[Path | None, dict[str, Any] | None]] = {}
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
            target, took, failed = convert(self._begun.folder, backend, job, self._watch)
            if failed is not None:
                self._failed[backend] = failed.status, f"converting: {failed.cause}"
                self._note(failed)
            self._converted[backend] = target, took

    def limit(self, number: int) -> None:
        """The yardstick of this round."""
        job = next(iter(self._jobs.values()))
        found, outcome = measure_limit(
            self._begun.folder / "limits" / str(number + 1), job, self._watch
        )
        self._limit = found or self._limit
        self._note(outcome)

    def run(self, backend: str, number: int) -> Path | None:
        """One run of a backend; None if it cannot run."""
        if backend in self._failed:
            return None
        folder = self._begun.folder / f"{backend}_{number + 1}"
        target, took = self._converted[backend]
        request, outcome = run_once(
            folder,
            self._begun,
            backend,
            self._jobs[backend],
            self._settings,
            title=f"{backend}, round {number + 1}",
            watch=self._watch,
            converted=target,
            conversion=took,
        )
        self._note(outcome)
        result = summarise(folder, request, outcome, self._limit)
        write_json(folder / "result.json", result)
        self._results[backend][number] = result
        return folder

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
        row: dict[str, Any] = {
            "status": status,
            "cause": cause,
            "shuffle": shuffle_of(find_baseline(backend), self._jobs[backend]),
            "conversion": self._converted.get(backend, (None, None))[1],
        }
        for figure in _FIGURES:
            row[figure] = _range([r[figure] for r in complete])
        return row

    def ratios(self, first: str) -> dict[str, dict[str, Any]]:
        """Samples a second of the first backend over each other one's, of the same rounds."""
        found = {}
        for backend, runs in self._results.items():
            both = [n for n in runs if n in self._results[first]]
            pairs = [(self._results[first][n], runs[n]) for n in both]
            values = [
                a["samples_per_s"] / b["samples_per_s"]
                for a, b in pairs
                if a["status"] == b["status"] == "complete" and b["samples_per_s"]
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
