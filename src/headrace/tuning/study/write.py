"""Writing what a study found: results.csv, results.json, log.md and plots, each whole or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.files import atomic_write
from headrace.measure.runs import write_json
from headrace.tuning.decision import Decision, contrast
from headrace.tuning.guard import Guard
from headrace.tuning.row import Row
from headrace.tuning.study.about import About
from headrace.tuning.study.log import markdown
from headrace.tuning.study.plot import study_plots
from headrace.tuning.study.table import csv_text

__all__ = ["results", "write_results"]


def results(
    about: About,
    rows: Sequence[Row],
    decision: Decision,
    guard: Guard,
    machine: dict[str, Any],
) -> dict[str, Any]:
    """What `results.json` says."""
    named = {row.label: row for row in rows}
    found = []
    for row in rows:
        base = named.get(about.base_of(row.label) or "")
        against = {"against": base.label, **_plain(row, base)} if base else None
        found.append({**row.to_dict(), "contrast": against})
    return {
        **about.to_dict(),
        "guard": guard.to_dict(),
        "rows": found,
        "decision": decision.to_dict(),
        "machine": machine,
    }


def write_results(
    folder: Path,
    about: About,
    rows: Sequence[Row],
    decision: Decision,
    guard: Guard,
    machine: dict[str, Any],
) -> None:
    """Write everything anew; whoever reads meanwhile sees the old or the new."""
    plots = study_plots(rows)
    (folder / "plots").mkdir(exist_ok=True)
    for plot in plots:
        atomic_write(folder / "plots" / f"{plot.name}.svg", plot.svg.file())
    names = [plot.name for plot in plots]
    atomic_write(folder / "results.csv", csv_text(rows, about.against or {}))
    atomic_write(folder / "log.md", markdown(about, rows, decision, guard, machine, names))
    write_json(folder / "results.json", results(about, rows, decision, guard, machine))


def _plain(row: Row, base: Row) -> dict[str, Any]:
    found = contrast(row, base)
    return {
        "verdict": found.verdict,
        "ratio": found.ratio,
        "min": found.low,
        "max": found.high,
        "rounds": found.rounds,
    }
