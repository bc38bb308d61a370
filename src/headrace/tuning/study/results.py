"""Rows of a study, the decision between them, and how they are shown: CSV, Markdown, plots. Pure.

Rounds take turns, so a row and its base saw the same machine in the same round: their ratio is
taken round by round, and its range over the rounds is the noise. A difference counts if that range
does not include 1 and the row's median lies outside what the base itself reached.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.runs import Status
from headrace.tuning.study.document import Study
from headrace.tuning.study.trial import FIGURES, Attempt, Trial

#: Rounds from which a difference is stated without a caution.
_ENOUGH = 3

Verdict: TypeAlias = Literal["faster", "slower", "no difference", "one round", "not known"]


@dataclass(frozen=True)
class Row:
    """One configuration with the rounds that it was run in.

    It is complete if all its rounds are; else it has the status and the cause of the first that is
    not, and the figures of those that are.

    >>> rates = (90.0, 110.0, 100.0)
    >>> row = Row(Trial("batch 128"), tuple(Attempt("complete", samples_per_s=r) for r in rates))
    >>> row.status, row.rate, row.spread
    ('complete', 100.0, (90.0, 110.0))
    """

    trial: Trial
    attempts: tuple[Attempt, ...]

    @property
    def label(self) -> str:
        return self.trial.label

    @cached_property
    def status(self) -> Status:
        if not self.attempts:
            return "not run"
        return next((a.status for a in self.attempts if not a.complete), "complete")

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @cached_property
    def cause(self) -> str | None:
        wrong = [a for a in self.attempts if not a.complete]
        if not wrong or len(wrong) == len(self.attempts):
            return wrong[0].cause if wrong else None
        return f"{len(wrong)} of {len(self.attempts)} rounds: {wrong[0].cause or self.status}"

    @cached_property
    def figures(self) -> Mapping[str, float | None]:
        """The median of each figure; of memory the worst round."""
        # Of a row that was never complete, what was measured before it was stopped is still of use.
        counted = [a for a in self.attempts if a.complete] or self.attempts
        found: dict[str, float | None] = {}
        for name in FIGURES:
            worst = {"peak_anon_mb": max, "peak_rss_mb": max, "min_available_mb": min}.get(name)
            values = [getattr(a, name) for a in (self.attempts if worst else counted)]
            known = [value for value in values if value is not None]
            found[name] = (worst or statistics.median)(known) if known else None
        return found

    @property
    def rate(self) -> float | None:
        """Samples a second, the median of the rounds."""
        return self.figures["samples_per_s"]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Samples a second round by round; None for a round that is not complete."""
        return tuple(a.samples_per_s if a.complete else None for a in self.attempts)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Lowest and highest samples a second of the complete rounds."""
        known = [rate for rate in self.rates if rate is not None]
        return (min(known), max(known)) if known else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to say, each sentence once."""
        found = [self.cause] if self.cause else []
        found += [note for attempt in self.attempts for note in attempt.notes]
        if (start := self.figures["validation_start_s"]) is not None:
            found.append(f"validation: first batch after {start:.2f} s")
        return tuple(dict.fromkeys(found))

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of the run folders, round by round."""
        return tuple(Path(attempt.folder).name for attempt in self.attempts if attempt.folder)

    @property
    def dates(self) -> str:
        """When its runs ended, the first and the last."""
        found = sorted(a.date[:16].replace("T", " ") for a in self.attempts if a.date)
        return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else ""

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The jobs of Slurm that its runs were part of."""
        return tuple(dict.fromkeys(a.job_id for a in self.attempts if a.job_id))

    def to_dict(self) -> dict[str, Any]:
        """As `results.json` has it."""
        return {
            "label": self.label,
            "change": self.trial.change,
            "backend": self.trial.backend,
            "status": self.status,
            "cause": self.cause,
            **self.figures,
            "samples_per_s_spread": list(self.spread) if self.spread else None,
            "rounds": [asdict(attempt) for attempt in self.attempts],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Contrast:
    """A row against another, in samples a second."""

    verdict: Verdict = "not known"
    ratio: float | None = None  #: median of the rounds
    low: float | None = None
    high: float | None = None
    rounds: int = 0

    @property
    def words(self) -> str:
        """As it stands in a table."""
        if self.ratio is None:
            return "-"
        between = f" ({self.low:.2f} to {self.high:.2f})" if self.rounds > 1 else ""
        return f"{self.ratio:.2f}{between}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Which row to take."""

    baseline: str
    best: str | None  #: the fastest row that is complete, and so kept the floor in all rounds
    contrast: Contrast  #: of that row against the baseline
    words: str


def contrast(row: Row, base: Row) -> Contrast:
    """A row against another, over the rounds that both completed."""
    ratios = [a / b for a, b in zip(row.rates, base.rates, strict=False) if a is not None and b]
    if not ratios:
        return Contrast()
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    if len(ratios) == 1:
        return Contrast("one round", ratio, low, high, 1)
    verdict: Verdict = "faster" if ratio > 1 else "slower"
    inside = base.spread and row.rate and base.spread[0] <= row.rate <= base.spread[1]
    if inside or low <= 1 <= high:
        verdict = "no difference"
    return Contrast(verdict, ratio, low, high, len(ratios))


def decide(rows: Sequence[Row]) -> Decision:
    """The best of the rows, the first of which is the baseline."""
    base = rows[0]
    complete = [row for row in rows if row.complete and row.rate is not None]
    if not complete:
        states = ", ".join(f"{row.label}: {row.status}" for row in rows)
        return Decision(
            base.label, None, Contrast(), f"No row is complete and has a figure ({states})."
        )

    def speed(row: Row) -> tuple[float, float]:
        # Medians of rates would compare one row's lucky round with another's unlucky one.
        ratio = contrast(row, base).ratio if base.complete else None
        return ratio or 0.0, row.rate or 0.0

    best = max(complete, key=speed)
    found = contrast(best, base)
    rate = f"{best.rate:,.0f} samples/s"
    if best is base:
        words = f"Keep the baseline, {base.label} ({rate}): no row that kept the floor is faster."
    elif not base.complete or found.verdict == "not known":
        words = (
            f"Take {best.label} ({rate}). It cannot be compared: the baseline, {base.label}, is "
            f"not complete ({base.status})."
        )
    elif found.verdict == "one round":
        words = (
            f"{best.label} was the fastest ({rate}, {found.words} of {base.label}), but one round "
            "shows no spread: repeat it to tell a difference from noise."
        )
    elif found.verdict == "no difference":
        words = (
            f"No difference: {best.label} was the fastest ({rate}), but at {found.words} of "
            f"{base.label} in {found.rounds} rounds it is within the noise. Keep the baseline."
        )
    else:
        words = (
            f"Take {best.label} ({rate}): {found.words} of {base.label} in {found.rounds} rounds."
        )
        if found.rounds < _ENOUGH:
            # The best of many rows is also the luckiest.
            words += f" {found.rounds} rounds are few: confirm it with more."
    return Decision(base.label, best.label, found, words)


def base_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The row that a row is compared with; None for the baseline, or if that row is not there."""
    return next((each for each in rows if each.label == row.trial.against), None)


# -- showing -------------------------------------------------------------------------------------

#: Columns for people; ">" is aligned to the right.
HEADS = (
    "label",
    "changed",
    "status",
    ">samples/s",
    ">rounds",
    ">ratio",
    ">batches",
    ">p50",
    ">p90",
    ">p99",
    ">loader share",
    ">peak memory",
    ">min available",
    ">wall",
)


def cells(row: Row, base: Row | None) -> tuple[str, ...]:
    """The cells of `HEADS`; `base` is the row it is compared with, None for the baseline."""
    figures = row.figures
    low, high = row.spread or (None, None)
    complete = sum(rate is not None for rate in row.rates)
    compared = contrast(row, base) if base is not None else Contrast()
    same = " no difference" if compared.verdict == "no difference" else ""
    return (
        row.label,
        row.trial.change or "none",
        row.status,
        amount(row.rate),
        f"{amount(low)} to {amount(high)}" if complete > 1 else str(complete or "-"),
        f"{compared.words}{same}",
        amount(figures["batches"]),
        *(seconds(figures[name]) for name in ("p50_s", "p90_s", "p99_s")),
        share(figures["loader_share"], 1),
        megabytes(figures["peak_anon_mb"]),
        megabytes(figures["min_available_mb"]),
        seconds(figures["wall_s"]),
    )


def csv_text(rows: Sequence[Row]) -> str:
    """One line a row, plain numbers; a figure that is not known is empty."""
    lines = []
    for row in rows:
        base = base_of(row, rows)
        compared = contrast(row, base) if base is not None else None
        low, high = row.spread or (None, None)
        lines.append(
            {
                "label": row.label,
                "change": row.trial.change,
                "backend": row.trial.backend,
                "status": row.status,
                **row.figures,
                "samples_per_s_min": low,
                "samples_per_s_max": high,
                "rounds": len(row.attempts),
                "against": base.label if base else None,
                "ratio": compared and compared.ratio,
                "ratio_min": compared and compared.low,
                "ratio_max": compared and compared.high,
                "verdict": compared and compared.verdict,
                "dates": row.dates,
                "job_ids": " ".join(row.job_ids),
                "run_folders": " ".join(row.folders),
                "notes": "; ".join(row.notes),
            }
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def setup_lines(study: Study, machine: Mapping[str, Any], measured: str | None = None) -> list[str]:
    """The machine, the mixture and the limits of the runs, as a list in Markdown."""
    guard, settings = study.guard, study.settings
    if measured is None:
        measured = f"training runs of {study.train}"
        if study.train is None:
            limits = [f"{settings.steps:,} batches"] if settings.steps else []
            limits += [f"{settings.seconds:g} s"] if settings.seconds else []
            long = ", at most ".join(limits)
            step = f" with a simulated step of {settings.compute_ms:g} ms"
            measured = (
                f"{long} a run{step if settings.compute_ms else ''}, after {settings.warmup} "
                f"batches and {settings.warmup_seconds:g} s of warm-up"
            )
    given = ", ".join(f"`{each}`" for each in study.overrides) or "none"
    return [
        f"- Machine: {machine['cpu']}, {machine['cores_allowed']} of {machine['cores']} CPUs, "
        f"{megabytes(machine['memory_bytes'] / 1e6)} of memory, {machine['system']}",
        f"- Mixture: {study.mixture or 'none'}; overrides of every run: {given}",
        f"- Measured: {measured}",
        f"- Guard: stopped below {megabytes(guard.floor / 1e6)} available, without a batch for "
        f"{guard.stall_seconds:g} s, or after {guard.timeout_s:g} s",
    ]


def markdown(
    study: Study,
    rows: Sequence[Row],
    decision: Decision,
    machine: Mapping[str, Any],
    plots: Sequence[str] = (),
) -> str:
    """The log of a study: the table, the decision and where everything lies."""
    lines = []
    for row in rows:
        base = base_of(row, rows)
        words = list(cells(row, base))
        if row.trial.change:
            words[1] = f"`{words[1]}`"
        if base is not None and base is not rows[0]:
            words[1] += f" (against {base.label})"
        folder = f"`{row.folders[0]}`" if row.folders else "-"
        lines.append([*words, folder, "; ".join(row.notes)])
    body = [f"# {study.name}", "", *([study.about, ""] if study.about else [])]
    body += setup_lines(study, machine)
    body += [f"- Rounds: {study.repeats}, in turns; the table has medians"]
    body += [f"- Run: {_when(rows)}", ""]
    body += markdown_table((*HEADS, "run folder", "notes"), lines)
    body += ["", "## Decision", "", decision.words]
    body += ["", *(f"![{name.replace('_', ' ')}](plots/{name}.svg)" for name in plots)]
    body += ["", "## Runs", ""]
    links = ["<br>".join(f"[{name}](runs/{name})" for name in row.folders) for row in rows]
    body += ["| label | date | job | run folders |", "|---|---|---|---|"]
    body += [
        f"| {_cell(row.label)} | {row.dates or '-'} | {', '.join(row.job_ids) or '-'} "
        f"| {all_ or '-'} |"
        for row, all_ in zip(rows, links, strict=True)
    ]
    return "\n".join(body) + "\n"


def _when(rows: Sequence[Row]) -> str:
    """The first and the last day of the runs, and the jobs that they were part of."""
    days = sorted(a.date[:10] for row in rows for a in row.attempts if a.date)
    jobs = list(dict.fromkeys(job for row in rows for job in row.job_ids))
    found = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not yet"
    return found + (f", Slurm job {', '.join(jobs)}" if jobs else "")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; a head that starts with ">" is aligned to the right."""
    rules = ["---:" if head.startswith(">") else "---" for head in heads]
    lines = [f"| {' | '.join(head.lstrip('>') for head in heads)} |", f"|{'|'.join(rules)}|"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _cell(text: str) -> str:
    """Text that ends neither a cell nor a line."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
