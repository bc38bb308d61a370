"""Plots of a study: a bar for each row, its figures beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.measure import theme
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.charts import Bar, Plot, Scale, bar_chart
from headrace.tuning.row import Row

__all__ = ["study_plots"]


def study_plots(rows: Sequence[Row]) -> list[Plot]:
    """A plot of each figure that at least one row has; none without the extra `plots`."""
    if not theme.available():
        return []
    found = [
        _plot(rows, "samples_per_s", "throughput", "Samples a second", amount),
        _plot(rows, "peak_anon_mb", "peak_memory", "Peak anonymous memory", megabytes),
        _plot(rows, "loader_share", "loader_share", "Share of the step that waited", share),
        _plot(rows, "validation_start_s", "validation_start", "Start of validation", seconds),
    ]
    return [plot for plot in found if plot is not None]


def _plot(
    rows: Sequence[Row], figure: str, name: str, title: str, words: Callable[[float], str]
) -> Plot | None:
    rates = figure == "samples_per_s"
    bars = []
    for row in rows:
        label = row.label if row.status == "pass" else f"{row.label} ({row.status})"
        value = row.figures[figure] if row.spread or not rates else None
        rounds = len([rate for rate in row.rates if rate is not None])
        bars.append(Bar(label, (value,), span=row.spread if rates and rounds > 1 else None))
    if all(bar.values[0] is None for bar in bars):
        return None
    caption = "The median of the rounds; the line is from the slowest to the fastest."
    x = Scale("samples/s" if rates else title.lower(), words, from_zero=True)
    return bar_chart(name, title, caption if rates else "", bars, (title.lower(),), x)
