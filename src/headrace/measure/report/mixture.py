"""Which datasets the batches came from, over time: two pictures and a summary in numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np

from headrace.measure.report.bands import gathered, stacked_areas, stacked_columns
from headrace.measure.report.plot import Plot
from headrace.measure.report.points import POINTS, rolling_shares
from headrace.measure.report.slow import switches
from headrace.measure.report.slow_tables import run_tables
from headrace.measure.report.table import aligned, one_line
from headrace.measure.runs import Run

__all__ = ["mixture_over_time", "mixture_summary", "mixture_windows"]

#: Batches of the rolling mean; a sixth of a short run. Chosen by eye, not measured.
_WINDOW = 50
#: Sequential batches shown together, and how far apart such groups lie, as the users' logs have it.
_TOGETHER, _STRIDE = 5, 100
#: Most groups that fit beside each other.
_GROUPS = 24
_TOP_DATASETS = 10
_NONE = "batch_times.jsonl names no datasets"


def mixture_over_time(run: Run, name: str = "mixture_over_time") -> Plot:
    """Stacked shares over the measured batches, as a rolling mean."""
    title = f"Mixture over time: {run.label}"
    batches = run.batches.measured()
    if not batches.counts.any():
        return Plot(name, title, None, _NONE)
    points = POINTS // 2  # each band has two edges
    count = len(batches)
    window = max(min(_WINDOW, -(-count // 6)), -(-count // points))
    bands, columns = gathered(batches.names, batches.counts)
    shares = rolling_shares(columns, window)
    # The window is as wide as the stride at least, so no batch is left out of the picture.
    picks = np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int))
    drawing = stacked_areas(name, title, batches.idx[picks], bands, shares[picks])
    caption = (
        f"Share of the samples by dataset, over {count:,} measured batches (rolling mean over "
        f"{window:,}). The figures are means over the run; labels stand in the order of the bands."
    )
    return Plot(name, title, drawing, caption)


def mixture_windows(run: Run, name: str = "mixture_windows_every_stride") -> Plot:
    """Five sequential batches every stride, each as it was, without a mean."""
    batches = run.batches.measured()
    stride = _stride(len(batches))
    title = f"{_TOGETHER} sequential batches every {stride:,}: {run.label}"
    if not batches.counts.any():
        return Plot(name, title, None, _NONE)
    bands, columns = gathered(batches.names, batches.counts)
    total = columns.sum(axis=1, keepdims=True)
    shares = np.divide(columns, total, out=np.zeros_like(columns), where=total > 0)
    groups = [
        (f"{batches.idx[start]:.0f}", shares[start : start + _TOGETHER])
        for start in range(0, len(batches), stride)
    ]
    drawing = stacked_columns(name, title, groups, bands)
    caption = (
        f"{_TOGETHER} sequential batches every {stride:,}: neighbours that look alike come from a "
        "shuffle that does not reach far. Share of the samples by dataset; one column a batch. The "
        "figures are means over the batches shown."
    )
    return Plot(name, title, drawing, caption)


def mixture_summary(run: Run) -> str:
    """The mixture in numbers, as text: one `key: value` a line, then tables.

    `dominant_switch_rate` is the share of batches whose dominant dataset (the one with most samples
    in it) differs from that of the batch before.
    """
    batches = run.batches.measured()
    dominant = [str(name) for name in batches.dominant if name]
    switched, stayed = (int(where.sum()) for where in switches(batches))
    rate = f"{switched / (switched + stayed):.4f}" if switched + stayed else "-"
    lines = [
        f"run: {one_line(run.label)}",
        f"measured_batches: {len(batches)}",
        f"measured_samples: {batches.samples.sum():.0f}",
        f"datasets: {len(run.mixture)}",
        f"unique_dominant_datasets: {len(set(dominant))}",
        f"dominant_switch_rate: {rate}",
        "top_datasets:",
    ]
    for name, count in Counter(dominant).most_common(_TOP_DATASETS):
        lines.append(
            f"  {one_line(name)}: dominant in {count} ({100 * count / len(dominant):.2f}%)"
        )
    order = sorted(run.mixture.items(), key=lambda item: -(item[1].served or 0.0))
    rows = []
    for name, share in order:
        known = share.asked is not None and share.served is not None
        apart = f"{100 * (share.served - share.asked):+.3f}%" if known else "-"  # type: ignore[operator]
        rows.append((name, _percent(share.asked), _percent(share.served), apart))
    lines += ["", *aligned(("dataset", "asked", "served", "difference"), rows), ""]
    return "\n".join([*lines, *(table.text() for table in run_tables(run))])


def _stride(count: int) -> int:
    """100; less in short runs so that there are groups to compare, more where they do not fit."""
    if count < 4 * _STRIDE:
        return max(_TOGETHER, count // 5)
    return _STRIDE * max(1, -(-count // (_STRIDE * _GROUPS)))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3f}%"
