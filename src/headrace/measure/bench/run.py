"""One backend, benchmarked and archived."""

from __future__ import annotations

import logging
import shutil
import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.documents import to_yaml
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import shuffle_of
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.bench.supervise import GRACE_SECONDS, Sight, Stop, supervise
from headrace.measure.job import Job
from headrace.measure.machine import machine_facts
from headrace.measure.runs import Outcome, new_run, summarise, write_json

__all__ = ["Watch", "begin", "bench", "draw", "measure_limit", "run_once"]

_log = logging.getLogger("headrace")

#: Told what happens: a title ("headrace 2/3") and what is seen of the process.
Watch = Callable[[str, Sight], None]

_LIMIT_SECONDS = 3.0
_LIMIT_TIMEOUT = 300.0


@dataclass(frozen=True)
class Begun:
    """A run's folder and what is said of the run in it."""

    folder: Path
    name: str
    machine: dict[str, Any]


def begin(runs: Path, name: str, job: Job, settings: BenchSettings, **more: Any) -> Begun:
    """Make the folder of a run; fails now if it cannot be written, not after the run."""
    folder = new_run(runs, name)
    root = job.mixture.root
    machine = machine_facts(Path(root) if root else None)
    write_json(folder / "machine.json", machine)
    config = {**more, "settings": settings.to_dict(), "job": job.to_dict()}
    atomic_write(folder / "config.yaml", to_yaml(config))
    return Begun(folder, name, machine)


def measure_limit(folder: Path, job: Job, watch: Watch) -> tuple[dict[str, Any] | None, Outcome]:
    """The decode and storage limits of a job, in a process of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    request = {"do": "limit", "job": job.to_dict(), "seconds": _LIMIT_SECONDS}
    outcome = supervise(
        folder, request, timeout_s=_LIMIT_TIMEOUT, watch=lambda sight: watch("limit", sight)
    )
    return outcome.measured, outcome


def mean_limit(limits: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The mean of several measurements of the same limits; None if none came about."""
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
    converted: Path | None = None,
    conversion: dict[str, Any] | None = None,
    stop: Stop = lambda _: None,
    grace_s: float = GRACE_SECONDS,
) -> tuple[dict[str, Any], Outcome]:
    """Run a backend in a fresh process; the request that was made and how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "do": "run",
        "name": begun.name if folder == begun.folder else folder.name,
        "backend": backend,
        "shuffle": shuffle_of(find_baseline(backend), job),
        "job": job.to_dict(),
        "settings": settings.to_dict(),
        "machine": begun.machine,
        "converted": str(converted) if converted else None,
        "conversion": conversion,
    }
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
    watch: Watch = lambda _title, _sight: None,
    stop: Stop = lambda _: None,
) -> tuple[Path, dict[str, Any]]:
    """Benchmark one backend; the run's folder and what `result.json` in it says.

    `stop` may end the run, with a status and a cause of its own.
    """
    settings = settings or BenchSettings()
    begun = begin(runs, name or backend, job, settings, backend=backend)
    converted, conversion, failed = convert(begun.folder, backend, job, watch, stop)
    limits = []
    if limit and failed is None:
        # Before and after: the machine may be another one by then.
        found, outcome = measure_limit(begun.folder / "limits" / "before", job, watch)
        limits.append(found)
        failed = outcome if outcome.status == "interrupted" else None
    if failed is not None:
        request = {"name": begun.name, "backend": backend, "job": job.to_dict()}
        request |= {"settings": settings.to_dict(), "machine": begun.machine}
        result = summarise(begun.folder, request, failed, None)
    else:
        request, outcome = run_once(
            begun.folder,
            begun,
            backend,
            job,
            settings,
            title=backend,
            watch=watch,
            converted=converted,
            conversion=conversion,
            stop=stop,
        )
        if limit and outcome.status == "complete":
            limits.append(measure_limit(begun.folder / "limits" / "after", job, watch)[0])
        result = summarise(begun.folder, request, outcome, mean_limit(limits))
    shutil.rmtree(conversion_folder(begun.folder, backend) / "data", ignore_errors=True)
    write_json(begun.folder / "result.json", result)
    draw(begun.folder)
    return begun.folder, result


def draw(folder: Path, *, comparison: bool = False) -> None:
    """Write the report of a run. What was measured is safe by now: a page that fails is a note."""
    from headrace.measure.report import write_comparison, write_run_report

    try:
        if comparison:
            write_comparison([folder], folder / "report.html")
        else:
            write_run_report(folder)
    except UsageError as error:  # for want of the extra `plots`, or of space
        _log.warning("%s; then `headrace report %s`", error, folder)
    except Exception:
        with (folder / "log.txt").open("a") as log:
            log.write(traceback.format_exc())
        _log.warning("the report of %s could not be drawn; log.txt there says why", folder)


def conversion_folder(folder: Path, backend: str) -> Path:
    """Where a rival's copy of the data is written."""
    return folder / "conversions" / backend


def convert(
    folder: Path, backend: str, job: Job, watch: Watch, stop: Stop = lambda _: None
) -> tuple[Path | None, dict[str, Any] | None, Outcome | None]:
    """Convert the data for a rival that needs it: where to, what it took, or why it failed."""
    if find_baseline(backend).convert is None:
        return None, None, None
    where = conversion_folder(folder, backend)
    target = where / "data"
    target.mkdir(parents=True)
    request = {
        "do": "convert",
        "backend": backend,
        "job": job.to_dict(),
        "converted": str(target),
    }
    outcome = supervise(
        where, request, timeout_s=3600, watch=lambda sight: watch(backend, sight), stop=stop
    )
    if outcome.status != "complete":
        return None, None, outcome
    return target, outcome.measured, None
