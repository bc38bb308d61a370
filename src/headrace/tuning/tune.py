"""`headrace tune`: the fastest options of a backend, under a memory floor and in a given time.

study = Study(mixture="oxe29", overrides=("root=/data/oxe",), backend="tfdata", seconds=8,
              runs=(Entry(label="defaults"),))
tuned = tune(study, Path("tunes/tfdata"), minutes=15)
print(tuned.words, tuned.command)
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.config.documents import parse_override, to_yaml
from headrace.engine.machine import allowed_cpus, available_memory
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed
from headrace.measure.bench import Watch
from headrace.measure.machine import machine_facts
from headrace.measure.quantities import amount
from headrace.measure.runs import write_json
from headrace.tuning.search import (
    LEAST_RUNS,
    Changes,
    Found,
    Search,
    Space,
    Tried,
    fitting,
    overrides,
    space_of,
    words,
)
from headrace.tuning.study.document import Entry, Study, plan
from headrace.tuning.study.ledger import RunFolder, Tell
from headrace.tuning.study.results import contrast, markdown_table, setup_lines
from headrace.tuning.study.trial import Attempt, Trial

#: headrace is meant to need no tuning: only more than this is reported as a gain.
_KEEP_OWN = 1.05
#: What starting a process takes at least, beside what is measured.
_AROUND_S = 2.0
#: A run that takes so many times as long as others, and a grace, will not be the fastest.
_PATIENCE, _GRACE_S = 3.0, 20.0


@dataclass(frozen=True)
class Tuned:
    """What was found, and where it lies."""

    folder: Path
    space: Space
    found: Found
    made: int  #: runs that were made now; the others were remembered
    words: str  #: the verdict
    command: str  #: a line to paste that runs what was chosen


def tune(
    study: Study,
    folder: Path,
    *,
    minutes: float = 15.0,
    reorder: bool = False,
    seed: int = 0,
    watch: Watch = lambda _title, _sight: None,
    tell: Tell = lambda _title, _attempt: None,
    begun: Callable[[Space], None] = lambda _space: None,
) -> Tuned:
    """Search the options of a study's backend; the same call resumes an earlier one.

    The study says what every run has in common: mixture, overrides, backend, settings, guard. An
    option among its overrides stays as given. `begun` is told the space before anything runs.
    """
    if find_spec("optuna") is None:
        raise UsageError("headrace tune needs Optuna", remedy="pip install 'headrace[tune]'")
    if minutes <= 0:
        raise UsageError(f"minutes is {minutes:g}", remedy="Give a number above 0")
    backend = study.backend or "headrace"
    baseline = find_baseline(backend)
    check_installed(baseline)
    machine = machine_facts(None)
    _trial(study, {})  # complains of overrides that cannot be
    space = space_of(baseline, allowed_cpus(), _given(study, backend), reorder=reorder)
    space.check({})
    if not space.knobs:
        fixed = ", ".join(space.fixed)
        raise UsageError(
            f"the backend {backend} has no option left to try",
            remedy=f"Remove some of {fixed}" if fixed else "There is nothing to tune",
        )
    total = int(machine.get("memory_bytes") or 0)
    study.guard.check_floor(available_memory(), total, "--min-available")
    expected = study.warmup_seconds + (study.seconds or 0.0) + _AROUND_S
    end = monotonic() + 60 * minutes

    def shown(title: str, sight: Any) -> None:
        watch(f"{title}, {max(0.0, end - monotonic()) / 60:.1f} min left", sight)

    with RunFolder.open(folder, study.guard, watch=shown, tell=tell) as runs:
        if not len(runs.ledger) and fitting(60 * minutes, [expected]) < LEAST_RUNS:
            raise UsageError(
                f"{minutes:g} minutes are too few for a comparison: a run takes at least "
                f"{expected:.0f} s, and {LEAST_RUNS} are needed",
                remedy="Raise --minutes, or lower --seconds",
            )
        begun(space)

        def written(found: Found) -> Tuned:
            parts = ["headrace", "bench", study.mixture or "", *study.overrides]
            command = shlex.join([*parts, "--backend", backend, *overrides(found.winner)])
            said = verdict(found, minutes, own=backend == "headrace")
            tuned = Tuned(folder, space, found, runs.made, said, command)
            _write(tuned, study, machine, minutes)
            return tuned

        walls: list[float] = []  # of complete runs

        def evaluate(changes: Changes, number: str, left_s: float) -> Attempt:
            return _evaluate(runs, _trial(study, changes), number, left_s, walls)

        search = Search(
            space,
            evaluate,
            lambda changes, number: runs.known(_trial(study, changes), number),
            60 * minutes,
            seed=seed,
            expected_s=expected,
        )
        if backend == "headrace":
            search.sample, search.keep = False, _KEEP_OWN
        return written(search.run(written))


def _given(study: Study, backend: str) -> dict[str, Any]:
    """The backend's own options among the overrides of a study."""
    found = {}
    for override in study.overrides:
        key, value = parse_override(override)
        head, _, rest = key.partition(".")
        if head in (backend, "loader"):
            found[f"loader.{rest}" if head == "headrace" else key] = value
    return found


def _trial(study: Study, changes: Changes) -> Trial:
    entry = Entry(label=study.backend or "headrace", overrides=tuple(overrides(changes)))
    [trial] = plan(replace(study, runs=(entry,)), cpus=allowed_cpus())
    if trial.known is not None:
        raise UsageError(trial.known[1])
    return replace(trial, change=words(changes))


def _evaluate(
    runs: RunFolder, trial: Trial, number: str, left_s: float, walls: list[float]
) -> Attempt:
    """A guarded run in the time that is left, or the remembered one."""
    least = trial.settings.warmup_seconds + (trial.settings.seconds or 0.0)
    if left_s <= least and not runs.known(trial, number):
        return Attempt("skipped", "the time is over")
    limit = min(runs.guard.timeout_s, _GRACE_S + _PATIENCE * max(walls, default=1e9))
    cut = left_s < limit
    title = f"{number.split()[0]}: {trial.change}"  # "search" or "final"
    attempt = runs.attempt(trial, number, title, timeout_s=min(limit, left_s), keep_timeout=not cut)
    if cut and attempt.status == "timed out":
        return Attempt("skipped", "the time was over before it ended")
    if attempt.complete and attempt.wall_s is not None:
        walls.append(attempt.wall_s)
    return attempt


# -- what is said and written --------------------------------------------------------------------


def verdict(found: Found, minutes: float, *, own: bool) -> str:
    """What to take and why, in a few sentences; `own`: of headrace itself."""
    start = found.start
    if found.ended == "nothing runs" and start is not None:
        return f"Nothing can be measured: the defaults do not run ({start.status}: {start.cause})."
    sentences = [_on_best(found, own=own) if found.tried else "Nothing was tried."]
    if own and found.proved:
        sentences.append("The defaults should be best everywhere: please report this with log.md.")
    if found.ended == "time":
        sentences.append(f"Not everything was tried in {minutes:g} minutes")
    elif found.ended == "interrupted":
        sentences.append("The search was interrupted")
    if found.ended in ("time", "interrupted"):
        sentences[-1] += "; run the same command again to continue."
    return " ".join(sentences)


def _on_best(found: Found, *, own: bool) -> str:
    best, compared = words(found.finalist), found.contrast
    rounds = f"{compared.rounds} round{'s' if compared.rounds > 1 else ''}"
    measured = f"{compared.words} times their speed in {rounds}"
    gain = 100 * ((compared.ratio or 1.0) - 1)
    if found.proved and compared.ratio is None:
        return f"{best} runs here; the defaults do not ({found.final[0].status})."
    if found.proved:
        return f"{best} is {gain:.0f}% faster than the defaults ({measured})."
    if found.unproved:
        return (
            f"{best} looks fastest so far, but was not run often enough against the defaults to "
            "tell it from noise."
        )
    if found.start is not None and not found.start.complete:
        return f"Nothing runs reliably: the defaults do not complete ({found.start.status})."
    keep = "Nothing to tune" if own else "Keep the defaults"
    if not found.final:
        return f"{keep}: nothing that was tried looked faster."
    if not found.final[1].complete:
        failed = found.final[1].status
        return f"{keep}: {best} looked faster, but failed when it ran again ({failed})."
    if compared.verdict == "faster":
        return f"{keep}: {best} is only {gain:.1f}% faster ({measured}), too little to matter."
    return f"{keep}: {best} looked faster, but not when it ran again ({measured})."


def option_rows(tuned: Tuned) -> list[tuple[str, str]]:
    """Each option that was tried by itself, with the speed of its values; the defaults are 1."""
    tried = {words(each.changes): each for each in tuned.found.tried}
    rows: dict[str, list[str]] = {}
    for key, value, places in tuned.space.singles():
        each = tried.get(words(tuned.space.changes(places)))
        if each is not None:
            shown = overrides({"": value})[0].removeprefix("=")
            rows.setdefault(key, []).append(f"{shown}: {_speed(each)}")
    return [(key, ", ".join(cells)) for key, cells in rows.items()]


def combination_rows(tuned: Tuned) -> list[tuple[str, str]]:
    """What was tried beside single options, with its speed, the fastest first."""
    singles = [tuned.space.changes(places) for _, _, places in tuned.space.singles()]
    others = [each for each in tuned.found.tried if each.changes not in singles]
    others.sort(key=lambda each: -(each.score or 0.0))
    return [(words(each.changes), _speed(each)) for each in others]


def _speed(tried: Tried) -> str:
    return tried.attempt.status if tried.score is None else f"{tried.score:.2f}"


def _write(tuned: Tuned, study: Study, machine: dict[str, Any], minutes: float) -> None:
    """Write tuned.yaml, log.md and result.json again."""
    found, folder = tuned.found, tuned.folder
    atomic_write(folder / "tuned.yaml", _tuned_yaml(tuned, study))
    atomic_write(folder / "log.md", _log(tuned, study, machine, minutes))
    result = {
        "mixture": study.mixture,
        "overrides": study.overrides,
        "left_as_given": tuned.space.fixed,
        "backend": study.backend or "headrace",
        "settings": asdict(study.settings),
        "guard": asdict(study.guard),
        "minutes": minutes,
        "ended": found.ended,
        "runs": found.runs,
        "winner": overrides(found.winner),
        "proved": found.proved,
        "verdict": tuned.words,
        "command": tuned.command,
        "final": [
            {**row.to_dict(), "contrast": asdict(contrast(row, found.final[0]))}
            for row in found.final
        ],
        "tried": [asdict(each) for each in found.tried],
        "machine": machine,
    }
    write_json(folder / "result.json", result)


def _tuned_yaml(tuned: Tuned, study: Study) -> str:
    """The winner against the defaults, as a study that can be run again."""
    runs: list[dict[str, Any]] = [{"label": "defaults"}]
    if tuned.found.winner:
        runs.append({"label": "tuned", "overrides": overrides(tuned.found.winner)})
    values = {
        "name": "tuned",
        "about": tuned.words,
        "mixture": study.mixture,
        "overrides": list(study.overrides),
        "backend": study.backend or "headrace",
        **({"steps": study.steps} if study.steps else {"seconds": study.seconds}),
        "warmup": study.warmup,
        "warmup_seconds": study.warmup_seconds,
        "guard": {"min_available": study.guard.min_available},
        "runs": runs,
    }
    return (
        f"# Chosen by `headrace tune`. To use it:\n#   {tuned.command}\n"
        f"# To measure it against the defaults again: headrace study tuned.yaml\n{to_yaml(values)}"
    )


def _log(tuned: Tuned, study: Study, machine: dict[str, Any], minutes: float) -> str:
    found = tuned.found
    body = [f"# Tuning {study.backend or 'headrace'} on {study.mixture}", ""]
    body += setup_lines(study, machine)
    body += [f"- Time: {minutes:g} minutes, {found.runs} runs", "", "## Single options", ""]
    body += ["Speeds are relative to the defaults in the same round.", ""]
    body += markdown_table(("option", "speed of each value"), option_rows(tuned))
    if rows := combination_rows(tuned):
        body += ["", "## Combinations", "", *markdown_table(("changed", ">speed"), rows)]
    if causes := [each for each in found.tried if each.attempt.cause]:
        lines = [(words(t.changes), t.attempt.status, t.attempt.cause or "") for t in causes]
        body += ["", "## What did not run", ""]
        body += markdown_table(("changed", "status", "cause"), lines)
    if found.final:
        compared = [
            (row.label, row.status, amount(row.rate), contrast(row, found.final[0]).words)
            for row in found.final
        ]
        body += ["", "## The best against the defaults, in turns", ""]
        body += markdown_table(("configuration", "status", ">samples/s", ">ratio"), compared)
    body += ["", "## Decision", "", tuned.words, "", "```", tuned.command, "```", ""]
    body += ["The runs are below `runs/`; `ledger.jsonl` has a line for each."]
    return "\n".join(body) + "\n"
