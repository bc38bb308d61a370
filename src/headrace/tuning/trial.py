"""One configuration to be tried, and trying it: a guarded run that always ends as an attempt.

trial = Trial("batch 128", "loader.batch_size=128", job=job, settings=BenchSettings(seconds=8))
row = run_trial(trial, Path("runs"), Guard(min_available=5 << 30), repeats=3)
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from headrace.config.documents import to_yaml
from headrace.errors import HeadraceError
from headrace.files import atomic_write
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed, shuffle_of
from headrace.measure.bench.run import begin, conversion_folder, convert, draw, run_once
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.bench.supervise import Sight, supervise_command
from headrace.measure.job import Job
from headrace.measure.machine import machine_facts
from headrace.measure.runs import Outcome, new_run, summarise, write_json
from headrace.tuning.attempt import Attempt, Status
from headrace.tuning.guard import Guard
from headrace.tuning.program import RESULT_FIGURES, figures_left_in
from headrace.tuning.row import Row, row_of

__all__ = ["Trial", "Watch", "run_trial", "status_of", "try_once"]

#: Told what happens: a title ("batch 128, round 2") and what is seen of the process.
Watch: TypeAlias = Callable[[str, Sight], None]

#: Said of figures of a run that did not come to its end.
CUT = "figures up to where it was stopped"

_STATUSES: dict[str, Status] = {
    "complete": "pass",
    "interrupted": "interrupted",
    "timed out": "timed out",
    "floor reached": "floor reached",
    "stalled": "stalled",
}


@dataclass(frozen=True)
class Trial:
    """What is run: a backend on a job, or a command; or why it cannot be."""

    label: str
    change: str = ""  #: what differs from the baseline, as a person wrote it
    backend: str = "headrace"  #: "command" where there is one
    job: Job | None = None
    settings: BenchSettings = field(default_factory=BenchSettings)
    command: str | tuple[str, ...] | None = None
    #: A status that is known before it runs, and why: "invalid configuration", "skipped".
    known: tuple[Status, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; two trials that are equal here would run the same."""
        return {
            "label": self.label,
            "change": self.change,
            "backend": self.backend,
            "job": self.job.to_dict() if self.job else None,
            "settings": self.settings.to_dict(),
            "command": list(self.command) if isinstance(self.command, tuple) else self.command,
            "known": list(self.known) if self.known else None,
        }


def run_trial(
    trial: Trial,
    folder: Path,
    guard: Guard,
    *,
    repeats: int = 1,
    watch: Watch = lambda _title, _sight: None,
) -> Row:
    """Try a configuration so many times in a row. Runs are archived in `folder`.

    Ctrl-C ends it; the row then has an interrupted round.
    """
    attempts: list[Attempt] = []
    for number in range(repeats):
        title = f"{trial.label}, round {number + 1}" if repeats > 1 else trial.label
        attempts.append(try_once(trial, folder, guard, title=title, watch=watch))
        if attempts[-1].status in ("interrupted", "invalid configuration", "not installed"):
            break
    return row_of(trial.label, trial.change, trial.backend, attempts)


def try_once(
    trial: Trial,
    folder: Path,
    guard: Guard,
    *,
    title: str | None = None,
    watch: Watch = lambda _title, _sight: None,
) -> Attempt:
    """One guarded run in a fresh process group, archived below `folder`; always an attempt.

    Only what is wrong with this side is raised: a folder that cannot be written, a full disk.
    """
    if trial.known is not None:
        return Attempt(*trial.known)
    settings = dataclasses.replace(
        trial.settings, timeout_s=min(guard.timeout_s, trial.settings.timeout_s)
    )
    trial = dataclasses.replace(trial, settings=settings)
    title = title or trial.label
    if trial.command is not None:
        return _command(trial, trial.command, folder, guard, title, watch)
    assert trial.job is not None
    try:
        check_installed(find_baseline(trial.backend))
    except HeadraceError as error:
        return Attempt("not installed", str(error))
    try:
        shuffle_of(find_baseline(trial.backend), trial.job)  # reads the backend's own options
    except HeadraceError as error:
        return Attempt("invalid configuration", str(error))
    return _bench(trial, trial.job, folder, guard, title, watch)


def _bench(trial: Trial, job: Job, runs: Path, guard: Guard, title: str, watch: Watch) -> Attempt:
    """A benchmark without the yardsticks, which a ladder does not need."""
    backend, settings = trial.backend, trial.settings
    begun = begin(runs, trial.label, job, settings, backend=backend)

    def shown(_title: str, sight: Sight) -> None:
        watch(title, sight)

    try:
        target, took, failed = convert(begun.folder, backend, job, shown, guard.check_memory)
        if failed is None:
            request, outcome = run_once(
                begun.folder,
                begun,
                backend,
                job,
                settings,
                title=title,
                watch=shown,
                converted=target,
                conversion=took,
                stop=guard.check,
                grace_s=guard.grace_s,
            )
        else:
            outcome = dataclasses.replace(failed, cause=f"converting: {failed.cause}")
            request = {"name": begun.name, "backend": backend, "job": job.to_dict()}
            request |= {"settings": settings.to_dict(), "machine": begun.machine}
        result = summarise(begun.folder, request, outcome, None)
        write_json(begun.folder / "result.json", result)
    finally:
        shutil.rmtree(conversion_folder(begun.folder, backend) / "data", ignore_errors=True)
    draw(begun.folder)
    figures = {key: result[key] for key in RESULT_FIGURES}
    figures["steps_per_s"] = result["batches_per_s"]
    if settings.compute_ms and result["stall_s_per_step"] is not None and result["mean_s"]:
        figures["loader_share"] = result["stall_s_per_step"] / result["mean_s"]
    return _attempt(outcome, begun.folder, figures)


def _command(
    trial: Trial,
    command: str | tuple[str, ...],
    runs: Path,
    guard: Guard,
    title: str,
    watch: Watch,
) -> Attempt:
    """Any program; its figures are those that it leaves in the run's folder."""
    folder = new_run(runs, trial.label)
    machine = machine_facts(None)
    write_json(folder / "machine.json", machine)
    atomic_write(folder / "config.yaml", to_yaml({"command": trial.to_dict()["command"]}))
    outcome = supervise_command(
        folder,
        command,
        timeout_s=trial.settings.timeout_s,
        watch=lambda sight: watch(title, sight),
        stop=guard.check,
        grace_s=guard.grace_s,
        env={"HEADRACE_RUN": str(folder.absolute())},
    )
    figures = figures_left_in(folder)
    figures["peak_anon_mb"] = outcome.peak_anonymous / 1e6
    figures["peak_rss_mb"] = outcome.peak_rss / 1e6
    return _attempt(outcome, folder, figures)


def _attempt(outcome: Outcome, folder: Path, figures: Mapping[str, float | None]) -> Attempt:
    notes = [] if figures.get("samples_per_s") is None or outcome.status == "complete" else [CUT]
    least = outcome.min_available
    if not outcome.peak_rss:  # it ended before anyone looked
        figures = {**figures, "peak_anon_mb": None, "peak_rss_mb": None}
    return Attempt(
        status_of(outcome),
        outcome.cause,
        str(folder),
        notes=tuple(notes),
        wall_s=outcome.wall_s,
        min_available_mb=None if least is None else least / 1e6,
        **figures,
    )


def status_of(outcome: Outcome) -> Status:
    """The status of a row.

    >>> status_of(Outcome("killed", out_of_memory=True))
    'oom-killed'
    """
    if outcome.out_of_memory:
        return "oom-killed"
    if outcome.refused:
        return "invalid configuration"
    return _STATUSES.get(outcome.status, "failed")
