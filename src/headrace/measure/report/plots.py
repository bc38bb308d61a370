"""The figures of one or several runs; here those with lines: throughput, batch times, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.measure.quantities import amount, megabytes, seconds
from headrace.measure.report.breakdown import shares, stages
from headrace.measure.report.chart import Line, Measure, line_chart
from headrace.measure.report.plot import Plot, run_styles
from headrace.measure.report.points import quantile_curve, rates, reduced
from headrace.measure.runs import Run

__all__ = ["all_plots", "batch_times", "memory", "throughput"]

Floats = NDArray[np.float64]
#: Most steps of a line of throughput; many lines beside each other are only read when calmer.
_STEPS = 150
#: With more runs than this their percentiles stand in the table only.
_NOTED = 8
_PERCENTS = (0.5, 0.9, 0.99)


def all_plots(runs: Sequence[Run]) -> list[Plot]:
    """Every figure, in the order of the page."""
    return [plot(runs) for plot in (throughput, batch_times, memory, shares, stages)]


def throughput(runs: Sequence[Run]) -> Plot:
    """Samples a second over time; batches a second where a run does not count samples."""
    title = "Throughput over time"
    counted = all(run.batches.samples.any() for run in runs if len(run.batches))
    lines = []
    for style, run in zip(run_styles(runs), runs, strict=True):
        batches = run.batches
        if not len(batches) or batches.t_s.max() <= 0:
            continue
        samples = batches.samples if counted else np.ones(len(batches))
        times, values = rates(batches.t_s, samples, _STEPS if len(runs) < 4 else _STEPS // 3)
        measured = batches.t_s[~batches.warmup]
        marks = [(_nearest(times, float(measured[0])), 0.0)] if len(measured) else []
        marks = [(x, float(values[np.searchsorted(times, x)])) for x, _ in marks]
        start = np.concatenate([[0.0], times]), np.concatenate([values[:1], values])
        lines.append(Line(run.label, *start, style, marks=marks, steps=True))
    unit = "samples/s" if counted else "batches/s"
    limits = {round(run.numbers.get("decode_limit_samples_per_s", 0.0)) for run in runs}
    levels = [
        (float(value), f"decode limit {amount(value)}") for value in limits if value and counted
    ]
    return _lines(
        "throughput",
        title,
        lines,
        Measure("seconds since the first request", amount),
        Measure(unit, amount, from_zero=True),
        f"{unit.capitalize()} over time, warm-up included; a marker shows where measuring begins. "
        "Each step is the mean of a few batches, so a dip is a stall."
        + (" Dashed: what decoding alone could do on this machine." if levels else ""),
        "batch_times.jsonl has no batches",
        levels if len(levels) == 1 else (),
    )


def batch_times(runs: Sequence[Run]) -> Plot:
    """The distribution of the measured batches' times, with room for the slow tail."""
    lines = []
    noted = len(runs) <= _NOTED
    for style, run in zip(run_styles(runs), runs, strict=True):
        times = run.batches.measured().dt_s
        times = times[np.isfinite(times) & (times > 0)]
        if not len(times):
            continue
        values, parts = quantile_curve(times)
        # The slowest batch is placed where half of it lies beyond: 100% has no place on this axis.
        parts = np.minimum(parts, 1 - 0.5 / len(times))
        points = [(float(np.percentile(times, 100 * p)), p) for p in _PERCENTS]
        words = [f"p{100 * p:.0f} {seconds(x)}" for x, p in points]
        words.append(f"slowest {seconds(float(times.max()))}")
        notes = [" · ".join(words[:2]), " · ".join(words[2:])]
        top = float(parts[-1])
        marks = [(x, p) for x, p in points if p <= top]
        lines.append(Line(run.label, values, parts, style, marks, notes if noted else ()))
    return _lines(
        "batch_times",
        "Batch times",
        lines,
        Measure("time of a whole step", seconds, "log"),
        Measure("batches at least as fast", _percent, "nines"),
        "How many of the measured batches took at most that long. Further left is faster; a curve "
        "that bends to the right at the top has stalls. Markers: p50, p90, p99.",
        "no measured batch has a time",
        follow=False,
    )


def memory(runs: Sequence[Run]) -> Plot:
    """Memory over time: both kinds for one run, the anonymous kind for several."""
    lines = []
    for style, run in zip(run_styles(runs), runs, strict=True):
        kinds = {"anonymous": run.memory.anon_mb, "resident": run.memory.rss_mb}
        known = {kind: values for kind, values in kinds.items() if np.isfinite(values).any()}
        shown = list(known)[: 2 if len(runs) == 1 else 1]
        for number, kind in enumerate(shown):
            x, y = reduced(run.memory.t_s, known[kind])
            notes = [f"peak {megabytes(y.max())}"] if len(runs) <= _NOTED else []
            label = kind if len(runs) == 1 else run.label
            label += " (resident)" if len(runs) > 1 and kind == "resident" else ""
            lines.append(Line(label, x, y, style + number, notes=notes))
    budgets = {run.numbers["budget_mb"] for run in runs if run.numbers.get("budget_mb")}
    level = [(value, f"loader's budget {megabytes(value)}") for value in budgets]
    return _lines(
        "memory",
        "Memory over time",
        lines,
        Measure("seconds since the process was started", amount),
        Measure("memory", megabytes, from_zero=True),
        "Memory of all processes of the run"
        + (". " if len(runs) == 1 else ": the anonymous part, which the system cannot drop. ")
        + (
            "The loader's budget is for batches in flight, not for the interpreter."
            if level
            else ""
        ),
        "memory.jsonl has no records",
        level if len(level) == 1 else (),
    )


def _lines(
    name: str,
    title: str,
    lines: Sequence[Line],
    x: Measure,
    y: Measure,
    caption: str,
    missing: str,
    levels: Sequence[tuple[float, str]] = (),
    follow: bool = True,
) -> Plot:
    if not lines:
        return Plot(name, title, None, missing)
    return Plot(name, title, line_chart(name, title, lines, x, y, levels, follow), caption)


def _nearest(times: Floats, value: float) -> float:
    """The edge of the staircase at or after a time."""
    return float(times[min(int(np.searchsorted(times, value)), len(times) - 1)])


def _percent(value: float) -> str:
    return f"{100 * value:.6g}%"
