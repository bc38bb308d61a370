"""The experiment log: a Markdown page with the table, the decision and where everything lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.measure.quantities import megabytes
from headrace.tuning.decision import Decision
from headrace.tuning.guard import Guard
from headrace.tuning.row import Row
from headrace.tuning.study.about import About
from headrace.tuning.study.table import HEADS, cells

__all__ = ["markdown"]


def markdown(
    about: About,
    rows: Sequence[Row],
    decision: Decision,
    guard: Guard,
    machine: Mapping[str, Any],
    plots: Sequence[str] = (),
) -> str:
    """The page."""
    floor = megabytes(guard.min_available / 1e6)
    setup = [
        f"- Machine: {machine['cpu']}, {machine['cores_allowed']} of {machine['cores']} CPUs, "
        f"{megabytes(machine['memory_bytes'] / 1e6)} of memory, {machine['system']}",
        f"- Mixture: {about.mixture or 'none'}; overrides of every run: "
        f"{', '.join(f'`{each}`' for each in about.overrides) or 'none'}",
        f"- Measured: {about.measured}; rounds in turns, the table has medians",
        f"- Guard: stopped under {floor} available, without a batch for {guard.stall_seconds:g} s, "
        f"or after {guard.timeout_s:g} s",
    ]
    body = [f"# {about.name}", "", *([about.about, ""] if about.about else []), *setup, ""]
    body += _table(rows, about)
    body += ["", "## Decision", "", decision.words]
    if plots:
        body += ["", *(f"![{name.replace('_', ' ')}](plots/{name}.svg)" for name in plots)]
    body += ["", "## Runs", "", "| label | run folders |", "|---|---|"]
    for row in rows:
        links = [f"[{Path(f).name}](runs/{Path(f).name})" for f in row.folders]
        body.append(f"| {_cell(row.label)} | {'<br>'.join(links) or '-'} |")
    return "\n".join(body) + "\n"


def _table(rows: Sequence[Row], about: About) -> list[str]:
    named = {row.label: row for row in rows}
    heads = [head.lstrip(">") for head in HEADS]
    rules = ["---:" if head.startswith(">") else "---" for head in HEADS]
    lines = [
        f"| {' | '.join([*heads, 'run folder', 'notes'])} |",
        f"|{'|'.join([*rules, '---', '---'])}|",
    ]
    for row in rows:
        base = named.get(about.base_of(row.label) or "")
        words = [_cell(cell) for cell in cells(row, base)]
        if row.change:
            words[1] = f"`{words[1]}`"
        if base is not None and base is not rows[0]:
            words[1] += f" (against {_cell(base.label)})"
        folder = f"`{Path(row.folders[0]).name}`" if row.folders else "-"
        words += [folder, _cell("; ".join(row.notes))]
        lines.append(f"| {' | '.join(words)} |")
    return lines


def _cell(text: str) -> str:
    """Text that neither ends a cell nor a line."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
