"""Running a study: rounds in turns, and everything known so far written after each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.config.typed import nearest
from headrace.engine.machine import allowed_cpus, available_memory
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure import theme
from headrace.measure.bench import Watch
from headrace.measure.machine import machine_facts
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.charts import Bar, Scale, bar_chart
from headrace.measure.runs import write_json
from headrace.tuning.study.document import Study, plan
from headrace.tuning.study.ledger import RunFolder, Tell
from headrace.tuning.study.results import (
    Decision,
    Row,
    base_of,
    contrast,
    csv_text,
    decide,
    markdown,
)
from headrace.tuning.study.trial import Attempt, Trial

#: File, figure, title and unit of each plot.
_PLOTS: tuple[tuple[str, str, str, Callable[[float | None], str]], ...] = (
    ("throughput", "samples_per_s", "Samples a second", amount),
    ("peak_memory", "peak_anon_mb", "Peak anonymous memory", megabytes),
    ("loader_share", "loader_share", "Share of the step spent waiting for data", share),
    ("validation_start", "validation_start_s", "Time to the first batch of validation", seconds),
)


@dataclass(frozen=True)
class Finished:
    """What a study found."""

    folder: Path
    rows: tuple[Row, ...]
    decision: Decision
    interrupted: bool
    made: int  #: runs that were made now; the others were remembered
    no_plots: str | None = None  #: why there are none, and how to get them


def order(trials: int, repeats: int) -> list[tuple[int, int]]:
    """(round, trial) in the order they run: all trials in each round, each round begins later.

    A machine's speed drifts, so rounds are interleaved: what is compared ran within minutes. The
    turn rotates, so no trial always runs first or after the same one.

    >>> order(3, 2)
    [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]
    """
    return [(r, (t + r) % trials) for r in range(repeats) for t in range(trials)]


def run_study(
    study: Study,
    folder: Path,
    *,
    only: Sequence[str] = (),
    again: bool = False,
    watch: Watch = lambda _title, _sight: None,
    tell: Tell = lambda _title, _attempt: None,
) -> Finished:
    """Run what is not finished yet; the first row is the baseline.

    A row that did not complete is not run in later rounds. Ctrl-C ends the study and keeps what was
    finished; the same call resumes it. `only` are labels of rows to run, beside the baseline;
    `again` forgets what was finished.
    """
    trials = _chosen(plan(study, cpus=allowed_cpus()), only)
    machine = machine_facts(None)
    study.guard.check_floor(available_memory(), int(machine.get("memory_bytes") or 0))
    attempts: list[list[Attempt]] = [[] for _ in trials]
    with RunFolder.open(folder, study.guard, again=again, watch=watch, tell=tell) as runs:
        for number, which in order(len(trials), study.repeats):
            trial, mine = trials[which], attempts[which]
            if mine and not mine[-1].complete:
                continue
            made = runs.made
            title = f"{trial.label}, round {number + 1} of {study.repeats}"
            mine.append(runs.attempt(trial, number, title))
            if mine[-1].status == "interrupted":
                break
            if runs.made > made:
                _write(study, folder, _rows(trials, attempts), machine)
        rows = _rows(trials, attempts)
        no_plots = None
        try:
            drawn = _draw(rows, folder / "plots")
        except UsageError as error:
            drawn, no_plots = [], str(error)
        decision = _write(study, folder, rows, machine, drawn)
    interrupted = any(row.status == "interrupted" for row in rows)
    return Finished(folder, rows, decision, interrupted, runs.made, no_plots)


def _chosen(trials: Sequence[Trial], labels: Sequence[str]) -> list[Trial]:
    names = [trial.label for trial in trials]
    for label in labels:
        if label not in names:
            raise UsageError(
                f"the study has no row {label!r}",
                remedy=f"{nearest(label, names)}Rows: {', '.join(names)}.",
            )
    return [t for n, t in enumerate(trials) if not labels or not n or t.label in labels]


def _rows(trials: Sequence[Trial], attempts: Sequence[Sequence[Attempt]]) -> tuple[Row, ...]:
    return tuple(Row(trial, tuple(mine)) for trial, mine in zip(trials, attempts, strict=True))


def _write(
    study: Study,
    folder: Path,
    rows: Sequence[Row],
    machine: dict[str, Any],
    plots: Sequence[str] = (),
) -> Decision:
    """Write everything again; readers see the old or the new version of each file."""
    decision = decide(rows)
    found = []
    for row in rows:
        base = base_of(row, rows)
        against = {"against": base.label, **asdict(contrast(row, base))} if base else None
        found.append({**row.to_dict(), "contrast": against})
    atomic_write(folder / "results.csv", csv_text(rows))
    write_json(
        folder / "results.json",
        {
            "name": study.name,
            "about": study.about,
            "mixture": study.mixture,
            "overrides": list(study.overrides),
            "settings": asdict(study.settings),
            "guard": asdict(study.guard),
            "rows": found,
            "decision": asdict(decision),
            "machine": machine,
        },
    )
    atomic_write(folder / "log.md", markdown(study, rows, decision, machine, plots))
    return decision


def _draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """A bar for each row, of the figures that at least one row has; the names of the files."""
    theme.require("Drawing the plots of a study")
    folder.mkdir(exist_ok=True)
    drawn = []
    for name, figure, title, words in _PLOTS:
        bars = []
        for row in rows:
            label = row.label if row.complete else f"{row.label} ({row.status})"
            several = figure == "samples_per_s" and row.spread and len(row.attempts) > 1
            bars.append(Bar(label, (row.figures[figure],), span=row.spread if several else None))
        if any(bar.values[0] is not None for bar in bars):
            scale = Scale(title.lower(), words, from_zero=True)
            plot = bar_chart(name, title, "", bars, (title.lower(),), scale)
            atomic_write(folder / f"{name}.svg", plot.svg.file())
            drawn.append(name)
    return drawn
