"""The rows of a study as CSV and as JSON, and as cells for people. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.tuning.attempt import FIGURES
from headrace.tuning.decision import contrast
from headrace.tuning.row import Row

__all__ = ["HEADS", "cells", "csv_text"]

#: Columns for people; ">" is aligned to the right.
HEADS = (
    "label",
    "changed",
    "status",
    ">samples/s",
    ">rounds",
    ">ratio",
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
    passed = sum(rate is not None for rate in row.rates)
    rounds = f"{amount(low)} to {amount(high)}" if passed > 1 else "1" if passed else "-"
    compared = contrast(row, base) if base is not None else None
    ratio = compared.words if compared else "-"
    if compared and compared.verdict == "no difference":
        ratio += " no difference"
    return (
        row.label,
        row.change or "none",
        row.status,
        amount(figures["samples_per_s"]),
        rounds,
        ratio,
        seconds(figures["p50_s"]),
        seconds(figures["p90_s"]),
        seconds(figures["p99_s"]),
        share(figures["loader_share"], 1),
        megabytes(figures["peak_anon_mb"]),
        megabytes(figures["min_available_mb"]),
        seconds(figures["wall_s"]),
    )


def csv_text(rows: Sequence[Row], against: Mapping[str, str]) -> str:
    """One line a row, plain numbers; a figure that is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    named = {row.label: row for row in rows}
    writer.writerow(
        ["label", "change", "backend", "status", *FIGURES, "samples_per_s_min"]
        + ["samples_per_s_max", "rounds", "against", "ratio", "ratio_min", "ratio_max"]
        + ["verdict", "run_folders", "notes"]
    )
    for row in rows:
        base = named.get(against.get(row.label, ""))
        compared = contrast(row, base) if base is not None else None
        low, high = row.spread or (None, None)
        writer.writerow(
            [row.label, row.change, row.backend, row.status]
            + [row.figures[name] for name in FIGURES]
            + [low, high, len(row.attempts), base.label if base else ""]
            + ([compared.ratio, compared.low, compared.high] if compared else [""] * 3)
            + [compared.verdict if compared else "", " ".join(_names(row)), "; ".join(row.notes)]
        )
    return out.getvalue()


def _names(row: Row) -> list[str]:
    return [Path(folder).name for folder in row.folders]
