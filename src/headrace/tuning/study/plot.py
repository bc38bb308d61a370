"""Plots of a study: bars a row, told apart by hatching, their values in words beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.bars import Row as Bar
from headrace.measure.report.bars import bar_chart
from headrace.measure.report.chart import Measure
from headrace.measure.report.plot import Plot
from headrace.tuning.row import Row

__all__ = ["study_plots"]


def study_plots(rows: Sequence[Row]) -> list[Plot]:
    """The figures that at least one row has."""
    plots = [_throughput(rows)]
    plots += [
        _single(rows, "peak_anon_mb", "peak_memory", "Peak anonymous memory", megabytes),
        _single(rows, "loader_share", "loader_share", "Share of the step that waited", share),
        _single(rows, "validation_start_s", "validation_start", "Start of validation", seconds),
    ]
    return [plot for plot in plots if plot.drawing is not None]


def _throughput(rows: Sequence[Row]) -> Plot:
    name, title = "throughput", "Samples a second"
    several = any(len([r for r in row.rates if r is not None]) > 1 for row in rows)
    series = ("median", "slowest round", "fastest round") if several else ("samples/s",)
    bars = []
    for row in rows:
        low, high = row.spread or (None, None)
        middle = row.figures["samples_per_s"] if row.spread else None
        bars.append(Bar(_label(row), (middle, low, high) if several else (middle,)))
    if all(bar.values[0] is None for bar in bars):
        return Plot(name, title, None, "no row passed with a figure")
    x = Measure("samples/s", amount, from_zero=True)
    return Plot(name, title, bar_chart(name, title, bars, series, x), "")


def _single(
    rows: Sequence[Row], figure: str, name: str, title: str, words: Callable[[float], str]
) -> Plot:
    values = [row.figures[figure] for row in rows]
    if all(value is None for value in values):
        return Plot(name, title, None, "no row has it")
    bars = [Bar(_label(row), (value,)) for row, value in zip(rows, values, strict=True)]
    x = Measure(title.lower(), words, from_zero=True)
    return Plot(name, title, bar_chart(name, title, bars, (title.lower(),), x), "")


def _label(row: Row) -> str:
    return row.label if row.status == "pass" else f"{row.label} ({row.status})"
