"""What a run is made of: shares by dataset, asked and served, and the times of its stages."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.measure.quantities import seconds
from headrace.measure.report.bars import Row, bar_chart, dot_chart
from headrace.measure.report.chart import Measure
from headrace.measure.report.plot import Plot, run_styles
from headrace.measure.runs import Run

__all__ = ["shares", "stages"]


def shares(runs: Sequence[Run]) -> Plot:
    """Shares asked and served: bars for one run, markers for several."""
    title = "Shares asked and served"
    words = Measure("share of samples", _fine, from_zero=len(runs) == 1)
    names = list(dict.fromkeys(name for run in runs for name in run.mixture))
    names.sort(key=lambda name: -max(_weight(run, name) for run in runs))
    if not names:
        return Plot("shares", title, None, "no run names its datasets")
    if len(runs) == 1:
        mixture = runs[0].mixture
        rows = [Row(name, (mixture[name].asked, mixture[name].served)) for name in names]
        drawing = bar_chart("shares", title, rows, ("asked", "served"), words)
        caption = "The share of each dataset in the mixture that was asked for, and in what came."
        return Plot("shares", title, drawing, caption)
    shown = [(s, run) for s, run in zip(run_styles(runs), runs, strict=True) if run.mixture]
    asked = {
        name: {s.asked for _, r in shown if (s := r.mixture.get(name)) and s.asked is not None}
        for name in names
    }
    differ = any(len(values) > 1 for values in asked.values())
    rows = []
    for name in names:
        served = [(s.served if (s := run.mixture.get(name)) else 0.0) for _, run in shown]
        wanted = next(iter(asked[name])) if len(asked[name]) == 1 else None
        rows.append(Row(name, (wanted, *served)))
    drawing = dot_chart("shares", title, rows, [(r.label, style) for style, r in shown], words)
    caption = "Markers: the share served by each run. Upright line: the share asked for" + (
        ", where all runs asked the same." if differ else "."
    )
    caption += " The axis begins at zero only where the shares lie far apart."
    return Plot("shares", title, drawing, caption)


def stages(runs: Sequence[Run]) -> Plot:
    """Seconds each stage was busy and waited."""
    title = "Stage times"
    every = [stage for run in runs for stage in run.stages.values()]
    # Where no stage has both, as in the native loader, one bar says it and a second is only noise.
    both = any(stage.busy_s and stage.waiting_s for stage in every)
    rows = []
    for run in runs:
        group = run.label if len(runs) > 1 else ""
        for name, stage in run.stages.items():
            times = (stage.busy_s, stage.waiting_s)
            rows.append(Row(name, times if both else (stage.busy_s or stage.waiting_s,), group))
            group = ""
    if not rows:
        return Plot("stages", title, None, "no run reports the times of its stages")
    silent = [run.label for run in runs if not run.stages]
    series = ("busy", "waiting") if both else ("over all threads",)
    drawing = bar_chart("stages", title, rows, series, Measure("time", seconds, from_zero=True))
    caption = (
        "Seconds over all threads of a stage. The stage that is busy and never waits is the one "
        "that limits; the others wait for it."
        if both
        else "Seconds over all threads. Where they hardly wait for work, the longest stage is what "
        "limits; where they wait for long, the loader was faster than the batches were taken."
    )
    caption += f" Without stage times: {', '.join(silent)}." if silent else ""
    return Plot("stages", title, drawing, caption)


def _weight(run: Run, name: str) -> float:
    """What was asked of a dataset, or else what it gave: the order of the rows."""
    found = run.mixture.get(name)
    return 0.0 if found is None else (found.asked or found.served or 0.0)


def _fine(value: float) -> str:
    return f"{100 * value:.3g}%"
