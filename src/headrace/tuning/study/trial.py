"""One configuration and its run under a guard: however the run ends, the result is an `Attempt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headrace.config.documents import to_yaml
from headrace.errors import HeadraceError, UsageError
from headrace.files import atomic_write
from headrace.loader.options import parse_size
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed
from headrace.measure.bench import Watch, bench
from headrace.measure.columns import finite
from headrace.measure.isolated import GRACE_SECONDS, Look, Sight, supervise_command
from headrace.measure.job import BenchSettings, Job
from headrace.measure.machine import machine_facts
from headrace.measure.runs import RunReader, Status, new_run, write_json


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits at which a run is stopped, before it takes the machine down.

    >>> Guard(min_available="5GiB").check(Look(4 << 30, 0, 0, 1.0))
    ('floor reached', '4.00 GiB of memory left, below the floor of 5.00 GiB')
    """

    #: Memory that must stay available on the machine and in its control groups: bytes, or a text
    #: such as 5GiB. 5 GiB is what users of these mixtures settled on after the kernel had killed
    #: their sessions.
    min_available: int | str = 5 << 30
    #: Without a batch. TensorFlow takes 10 s to start on two cores, and minutes with remote data.
    stall_seconds: float = 120.0
    timeout_s: float = 900.0  #: for everything, from the start of the process
    grace_s: float = GRACE_SECONDS  #: from SIGTERM to SIGKILL for a run that must end

    def __post_init__(self) -> None:
        try:
            size = parse_size(self.min_available)
        except UsageError as error:
            problem = f"min_available is {self.min_available!r}, not a size"
            raise UsageError(problem, remedy=error.remedy) from None
        if size < 0:
            raise UsageError(f"min_available is {size}", remedy="Give a size such as 5GiB")
        object.__setattr__(self, "min_available", size)
        for name in ("stall_seconds", "timeout_s", "grace_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give seconds above 0")

    @property
    def floor(self) -> int:
        """`min_available` in bytes."""
        assert isinstance(self.min_available, int)
        return self.min_available

    def check(self, look: Look) -> tuple[str, str] | None:
        """The status and the cause if the run must be stopped now."""
        if look.available < self.floor:
            left, floor = _gib(look.available), _gib(self.floor)
            return "floor reached", f"{left} of memory left, below the floor of {floor}"
        if look.idle_s > self.stall_seconds:
            return "stalled", f"no batch for {self.stall_seconds:g} s"
        return None

    def check_floor(self, available: int, total: int, option: str = "guard.min_available") -> None:
        """`UsageError` if every run would be stopped at once; `option` is how the user sets it."""
        if self.floor >= available:
            raise UsageError(
                f"{option} is {_gib(self.floor)}, but only {_gib(available)} of the machine's "
                f"{_gib(total)} are available now: every run would be stopped at once",
                remedy=f"Lower {option}, or end what holds the memory",
            )


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a run ended, and its figures as far as it got; None: not known."""

    status: Status
    cause: str | None = None  #: why it is not complete
    folder: str | None = None  #: the run's own
    date: str | None = None  #: when it ended
    job_id: str | None = None  #: of Slurm, where the run was part of a job
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    batches: float | None = None  #: measured, without the warm-up
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    #: The share of the step spent waiting for data; only where a step is simulated or real.
    loader_share: float | None = None
    first_batch_s: float | None = None
    peak_anon_mb: float | None = None
    peak_rss_mb: float | None = None
    min_available_mb: float | None = None  #: least memory left, of the machine and its groups
    validation_start_s: float | None = None
    wall_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Attempt:
        """The inverse of `asdict`; keys of a later version are left out."""
        kept = {each.name: values[each.name] for each in fields(Attempt) if each.name in values}
        return Attempt(**{**kept, "notes": tuple(kept.get("notes", ()))})


#: What is measured of a run, in the order of the tables.
FIGURES = tuple(
    f.name
    for f in fields(Attempt)
    if f.name not in ("status", "cause", "folder", "date", "job_id", "notes")
)


@dataclass(frozen=True)
class Trial:
    """What is run: a backend on a job, or a command; or why it cannot run."""

    label: str
    change: str = ""  #: what differs from its base, as a person wrote it
    backend: str = "headrace"  #: "command" or "train" where there is a command
    job: Job | None = None
    settings: BenchSettings = field(default_factory=BenchSettings)
    command: str | tuple[str, ...] | None = None
    #: A status that is known before it runs, and why: "invalid configuration", "skipped".
    known: tuple[Status, str] | None = None
    against: str | None = None  #: the label of the row it is compared with; None: it is the base

    def to_dict(self) -> dict[str, Any]:
        """What decides how it runs, as JSON: trials that are equal here would run the same."""
        return {
            "label": self.label,
            "backend": self.backend,
            "job": self.job.to_dict() if self.job else None,
            "settings": asdict(self.settings),
            "command": self.command,
        }


def try_once(
    trial: Trial,
    folder: Path,
    guard: Guard,
    *,
    title: str | None = None,
    watch: Watch = lambda _title, _sight: None,
) -> Attempt:
    """One guarded run in a process group of its own, archived below `folder`.

    Raises only for what is wrong on this side: a folder that cannot be written, a full disk.
    """
    if trial.known is not None:
        return Attempt(*trial.known)
    timeout = min(guard.timeout_s, trial.settings.timeout_s)

    def shown(_title: str, sight: Sight) -> None:
        watch(title or trial.label, sight)

    if trial.command is not None:
        return _run_command(trial.label, trial.command, timeout, folder, guard, shown)
    assert trial.job is not None
    baseline = find_baseline(trial.backend)
    try:
        check_installed(baseline)
    except HeadraceError as error:
        return Attempt("not installed", str(error))
    try:
        baseline.shuffle_of(trial.job)  # reads the backend's own options
    except HeadraceError as error:
        return Attempt("invalid configuration", str(error))
    run, result = bench(
        trial.job,
        trial.backend,
        replace(trial.settings, timeout_s=timeout),
        runs=folder,
        name=trial.label,
        limit=False,  # no table of a study shows it
        draw=False,
        watch=shown,
        stop=guard.check,
        grace_s=guard.grace_s,
    )
    # Without a step, a loader that is asked for the next batch at once always waits.
    found = _attempt(run, result, step=trial.settings.compute_ms > 0)
    return replace(found, notes=(*found.notes, *_cut_short(found, trial.settings)))


def _cut_short(found: Attempt, settings: BenchSettings) -> tuple[str, ...]:
    """A note if the time limit came before the batches."""
    wanted, batches = settings.steps, found.batches
    if not found.complete or wanted is None or batches is None or batches >= wanted:
        return ()
    return (f"{batches:.0f} of {wanted} batches: the time limit is {settings.seconds:g} s",)


def _run_command(
    label: str,
    command: str | tuple[str, ...],
    timeout_s: float,
    runs: Path,
    guard: Guard,
    watch: Watch,
) -> Attempt:
    """Any program; its figures are those that it leaves in the run's folder.

    A training script needs nothing of headrace for this: it finds the folder in `HEADRACE_RUN` and
    writes `batch_times.jsonl` (one record a step: `dt_s`, and `fetch_dt_s`, `samples`, `is_warmup`
    where it knows them), or `result.json` with figures of its own, which take precedence.
    """
    folder = new_run(runs, label)
    write_json(folder / "machine.json", machine_facts(None))
    listed = command if isinstance(command, str) else list(command)
    atomic_write(folder / "config.yaml", to_yaml({"command": listed}))
    outcome = supervise_command(
        folder,
        command,
        timeout_s=timeout_s,
        watch=lambda sight: watch(label, sight),
        stop=guard.check,
        grace_s=guard.grace_s,
        env={"HEADRACE_RUN": str(folder.absolute())},
    )
    reader = RunReader(folder)
    stated = {key: value for key, value in reader.result.items() if finite(value) is not None}
    seen = {
        "status": outcome.status,
        "cause": outcome.cause,
        "peak_rss_mb": outcome.peak_rss / 1e6,
        "peak_anon_mb": outcome.peak_anonymous / 1e6,
        "min_available_mb": outcome.min_available and outcome.min_available / 1e6,
        "wall_s": outcome.wall_s,
    }
    return _attempt(folder, {**reader.figures(), **stated, **seen}, step=True)


def _attempt(folder: Path, found: Mapping[str, Any], *, step: bool) -> Attempt:
    """From the keys of result.json; `step`: the time between batches was used."""
    figures = {name: finite(found.get(name)) for name in FIGURES}
    figures["steps_per_s"] = figures["steps_per_s"] or finite(found.get("batches_per_s"))
    stall, mean = finite(found.get("stall_s_per_step")), finite(found.get("mean_s"))
    if step and figures["loader_share"] is None and stall is not None and mean:
        figures["loader_share"] = stall / mean
    if not figures["peak_rss_mb"]:  # it ended before its memory was looked at
        figures |= {"peak_anon_mb": None, "peak_rss_mb": None}
    cut = found["status"] != "complete" and figures["samples_per_s"] is not None
    notes = ("figures up to where it was stopped",) if cut else ()
    status, cause = found["status"], found["cause"]
    return Attempt(status, cause, str(folder), date=None, job_id=None, notes=notes, **figures)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
