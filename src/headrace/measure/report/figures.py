"""The figures of one run, or of several side by side."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.measure import theme
from headrace.measure.quantities import amount, megabytes, seconds
from headrace.measure.report.charts import (
    Bands,
    Bar,
    Line,
    Plot,
    Scale,
    bar_chart,
    dot_chart,
    line_chart,
    nothing,
    stacked_areas,
    stacked_columns,
)
from headrace.measure.results import Run

Floats = NDArray[np.float64]
#: Most points of one line: about one a pixel of the charts, which are 636 wide.
_POINTS = 600
#: With more runs than this their percentiles and peaks are in the tables only.
_NOTED = 8
#: Batches of the rolling mean; a sixth of a short run. Chosen by eye, not measured.
_WINDOW = 50
#: Sequential batches shown together, and how far apart such groups lie, as the users' logs have it.
_TOGETHER, _STRIDE = 5, 100
#: Most groups that fit beside each other.
_GROUPS = 24


def run_figures(runs: Sequence[Run]) -> list[Plot]:
    """Every figure that can show several runs, in the order of the page."""
    return [draw(runs) for draw in (throughput, batch_times, memory, shares, stages)]


def throughput(runs: Sequence[Run]) -> Plot:
    """Samples a second over time; batches a second where a run does not count samples."""
    name, title = "throughput", "Throughput over time"
    counted = all(run.batches.samples.any() for run in runs if len(run.batches))
    lines = []
    for style, run in zip(_styles(runs), runs, strict=True):
        batches = run.batches
        if not len(batches) or batches.t_s.max() <= 0:
            continue
        samples = batches.samples if counted else np.ones(len(batches))
        # Many lines beside each other can only be read when they are calmer.
        times, values = _rates(batches.t_s, samples, 150 if len(runs) < 4 else 50)
        measured = batches.t_s[~batches.warmup]
        first = min(int(np.searchsorted(times, measured[:1].sum())), len(times) - 1)
        marks = [(float(times[first]), float(values[first]))] if len(measured) else []
        x, y = np.concatenate([[0.0], times]), np.concatenate([values[:1], values])
        lines.append(Line(run.label, x, y, style, marks, steps=True))
    if not lines:
        return nothing(name, title, "batch_times.jsonl has no batches")
    unit = "samples/s" if counted else "batches/s"
    limits = {round(run.numbers.get("decode_limit_samples_per_s", 0.0)) for run in runs} - {0}
    limited = counted and len(limits) == 1
    return line_chart(
        name,
        title,
        f"{unit.capitalize()} over time, warm-up included; a marker shows where measuring begins. "
        "Each step is the mean of a few batches, so a dip is a stall."
        + (" Dashed: what decoding alone could do on this machine." if limited else ""),
        lines,
        Scale("seconds since the first request", amount),
        Scale(unit, amount, from_zero=True),
        [(float(value), f"decode limit {amount(value)}") for value in limits] if limited else [],
    )


def batch_times(runs: Sequence[Run]) -> Plot:
    """The distribution of the measured batches' times, with room for the slow tail."""
    name, title = "batch_times", "Batch times"
    lines = []
    for style, run in zip(_styles(runs), runs, strict=True):
        times = run.batches.measured().dt_s
        times = times[np.isfinite(times) & (times > 0)]
        if not len(times):
            continue
        values, parts = _quantile_curve(times)
        # The slowest batch is placed where half of it lies beyond: 100% has no place on this axis.
        parts = np.minimum(parts, 1 - 0.5 / len(times))
        points = [(float(np.percentile(times, 100 * p)), p) for p in (0.5, 0.9, 0.99)]
        words = [f"p{100 * p:.0f} {seconds(x)}" for x, p in points]
        words.append(f"slowest {seconds(float(times.max()))}")
        notes = [" · ".join(words[:2]), " · ".join(words[2:])] if len(runs) <= _NOTED else []
        marks = [(x, p) for x, p in points if p <= parts[-1]]
        lines.append(Line(run.label, values, parts, style, marks, notes))
    if not lines:
        return nothing(name, title, "no measured batch has a time")
    return line_chart(
        name,
        title,
        "How many of the measured batches took at most that long. Further left is faster; a curve "
        "that bends to the right at the top has stalls. Markers: p50, p90, p99.",
        lines,
        Scale("time of a whole step", seconds, "log"),
        Scale("batches at least as fast", lambda value: f"{100 * value:.6g}%", "nines"),
        follow=False,
    )


def memory(runs: Sequence[Run]) -> Plot:
    """Memory over time: both kinds for one run, the anonymous kind for several."""
    name, title = "memory", "Memory over time"
    one = len(runs) == 1
    lines = []
    for style, run in zip(_styles(runs), runs, strict=True):
        kinds = {"anonymous": run.memory.anon_mb, "resident": run.memory.rss_mb}
        known = {kind: values for kind, values in kinds.items() if np.isfinite(values).any()}
        for number, kind in enumerate(list(known)[: 2 if one else 1]):
            x, y = _reduced(run.memory.t_s, known[kind])
            notes = [f"peak {megabytes(y.max())}"] if len(runs) <= _NOTED else []
            label = kind if one else run.label + (" (resident)" if kind == "resident" else "")
            lines.append(Line(label, x, y, style + number, notes=notes))
    if not lines:
        return nothing(name, title, "memory.jsonl has no records")
    budgets = {run.numbers["budget_mb"] for run in runs if run.numbers.get("budget_mb")}
    return line_chart(
        name,
        title,
        "Memory of all processes of the run"
        + (". " if one else ": the anonymous part, which the system cannot drop. ")
        + (
            "The loader's budget is for batches in flight, not for the interpreter."
            if budgets
            else ""
        ),
        lines,
        Scale("seconds since the process was started", amount),
        Scale("memory", megabytes, from_zero=True),
        [(value, f"loader's budget {megabytes(value)}") for value in budgets]
        if len(budgets) == 1
        else [],
    )


def shares(runs: Sequence[Run]) -> Plot:
    """Shares requested and actual: bars for one run, markers for several."""
    name, title = "shares", "Requested and actual shares"
    datasets = list(dict.fromkeys(dataset for run in runs for dataset in run.mixture))
    datasets.sort(key=lambda dataset: -max(_weight(run, dataset) for run in runs))
    if not datasets:
        return nothing(name, title, "no run names its datasets")
    scale = Scale("share of samples", _fine, from_zero=len(runs) == 1)
    if len(runs) == 1:
        known = runs[0].mixture
        rows = [Bar(name, (known[name].actual,), mark=known[name].requested) for name in datasets]
        caption = (
            "Lines and first figures: the share requested. Bars and second figures: the actual one."
        )
        return bar_chart(name, title, caption, rows, ("actual",), scale, mark="requested")
    shown = [(s, run) for s, run in zip(_styles(runs), runs, strict=True) if run.mixture]
    rows, differ = [], False
    for dataset in datasets:
        found = [run.mixture.get(dataset) for _, run in shown]
        requested = {share.requested for share in found if share and share.requested is not None}
        differ |= len(requested) > 1
        rows.append(
            Bar(
                dataset,
                [share.actual if share else 0.0 for share in found],
                mark=next(iter(requested)) if len(requested) == 1 else None,
            )
        )
    caption = "Markers: the actual share in each run. Upright line: the share requested"
    caption += ", where it is the same for all runs." if differ else "."
    caption += " The axis begins at zero only where the shares lie far apart."
    series = [(run.label, style) for style, run in shown]
    return dot_chart(name, title, caption, rows, series, scale, mark="requested")


def stages(runs: Sequence[Run]) -> Plot:
    """Seconds each stage was busy and waited."""
    name, title = "stages", "Stage times"
    every = [stage for run in runs for stage in run.stages.values()]
    # Where no stage has both, as in the native loader, one bar says it and a second is only noise.
    both = any(stage.busy_s and stage.waiting_s for stage in every)
    rows = []
    for run in runs:
        if run.stages and len(runs) > 1:
            rows.append(Bar(run.label, ()))
        for stage, times in run.stages.items():
            values = (times.busy_s, times.waiting_s) if both else (times.busy_s or times.waiting_s,)
            rows.append(Bar(stage, values))
    if not rows:
        return nothing(name, title, "no run reports the times of its stages")
    caption = (
        "Seconds over all workers of a stage. The stage that is busy and never waits is the one "
        "that limits; the others wait for it."
        if both
        else "Seconds over all workers. Where they hardly wait for work, the longest stage is what "
        "limits; where they wait long, the loader was faster than the batches were taken."
    )
    silent = [run.label for run in runs if not run.stages]
    caption += f" Without stage times: {', '.join(silent)}." if silent else ""
    series = ("busy", "waiting") if both else ("over all workers",)
    return bar_chart(name, title, caption, rows, series, Scale("time", seconds, from_zero=True))


def mixtures_over_time(runs: Sequence[Run]) -> list[Plot]:
    """The mixture of each run, with the same colours for the same datasets."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update({name: share.actual or 0.0 for name, share in run.mixture.items()})
    order = [name for name, _ in total.most_common()]
    return [mixture_over_time(r, f"mixture_over_time_{n}", order) for n, r in enumerate(runs, 1)]


def mixture_over_time(run: Run, name: str = "mixture_over_time", order: Sequence[str] = ()) -> Plot:
    """Stacked shares over the measured batches, as a rolling mean; `order` as for `_bands`."""
    title = f"Mixture over time: {run.label}"
    batches = run.batches.measured()
    if not batches.counts.any():
        return nothing(name, title, "batch_times.jsonl names no datasets")
    points = _POINTS // 2  # each band has two edges
    count = len(batches)
    window = max(min(_WINDOW, -(-count // 6)), -(-count // points))
    bands, columns = _bands(batches.names, batches.counts, order)
    shares = _rolling_shares(columns, window)
    # The window is as wide as the stride at least, so no batch is left out of the picture.
    picks = np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int))
    caption = (
        f"Share of the samples by dataset, over {count:,} measured batches (rolling mean over "
        f"{window:,}). The figures are means over the run; labels are in the order of the bands."
    )
    return stacked_areas(name, title, caption, batches.idx[picks], bands, shares[picks])


def mixture_windows(run: Run, name: str = "mixture_windows_every_stride") -> Plot:
    """Five sequential batches every stride, each as it was, without a mean."""
    batches = run.batches.measured()
    count = len(batches)
    if count < 4 * _STRIDE:  # a short run still has groups to compare
        stride = max(_TOGETHER, count // 5)
    else:
        stride = _STRIDE * max(1, -(-count // (_STRIDE * _GROUPS)))
    title = f"{_TOGETHER} sequential batches every {stride:,}: {run.label}"
    if not batches.counts.any():
        return nothing(name, title, "batch_times.jsonl names no datasets")
    bands, columns = _bands(batches.names, batches.counts)
    total = columns.sum(axis=1, keepdims=True)
    shares = np.divide(columns, total, out=np.zeros_like(columns), where=total > 0)
    groups = [
        (f"{batches.idx[start]:.0f}", shares[start : start + _TOGETHER])
        for start in range(0, count, stride)
    ]
    caption = (
        f"{_TOGETHER} sequential batches every {stride:,}: neighbours that look alike come from a "
        "shuffle that does not reach far. Share of the samples by dataset; one column a batch. The "
        "figures are means over the batches shown."
    )
    return stacked_columns(name, title, caption, groups, bands)


def _styles(runs: Sequence[Run]) -> list[int]:
    """A style for each run: those of one backend share its colour and differ in dashes."""
    backends = list(dict.fromkeys(run.backend for run in runs))
    if len(backends) in (1, len(runs)):
        return list(range(len(runs)))
    colours, dashes = len(theme.COLOURS), len(theme.DASHES)
    # These have no common divisor: every combination is among their products.
    found = {(n % colours, n % dashes): n for n in range(colours * dashes)}
    return [found[backends.index(r.backend) % colours, n % dashes] for n, r in enumerate(runs)]


def _weight(run: Run, dataset: str) -> float:
    """The requested share of a dataset, or else the actual one: the order of the rows."""
    found = run.mixture.get(dataset)
    return 0.0 if found is None else (found.requested or found.actual or 0.0)


def _fine(value: float) -> str:
    return f"{100 * value:.3g}%"


# -- fewer points for the same picture -------------------------------------------------------------


def _bands(
    names: Sequence[str], counts: Floats, order: Sequence[str] = (), most: int = 12
) -> tuple[Bands, Floats]:
    """The datasets with most samples as bands, largest first, and the others added up as one.

    Those in `order` come first and have the style of their place in it.

    >>> _bands(["a", "b", "c"], np.array([[1.0, 5.0, 2.0]]), most=1)
    ([('b', 0), ('other (2)', None)], array([[5., 3.]]))
    """
    rank = {name: number for number, name in enumerate(order)}
    largest = np.argsort(-counts.sum(axis=0), kind="stable").tolist()
    chosen = sorted(largest, key=lambda i: rank.get(names[i], len(rank)))
    # One dataset alone is shown under its own name rather than as "other (1)".
    cut = len(chosen) if len(chosen) <= most + 1 else most
    bands: list[tuple[str, int | None]] = [
        (names[i], rank.get(names[i], len(rank) + n)) for n, i in enumerate(chosen[:cut])
    ]
    columns = counts[:, chosen[:cut]]
    if cut < len(chosen):
        bands.append((f"other ({len(chosen) - cut})", None))
        columns = np.hstack([columns, counts[:, chosen[cut:]].sum(axis=1, keepdims=True)])
    return bands, columns


def _reduced(x: Floats, y: Floats, points: int = _POINTS) -> tuple[Floats, Floats]:
    """At most that many points, with the lowest and the highest of every interval among them.

    >>> x, y = _reduced(np.arange(1000.0), np.eye(1, 1000, 500)[0], 10)
    >>> len(x) <= 10, y.max()
    (True, np.float64(1.0))
    """
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(x) <= points:
        return x, y
    edges = np.linspace(0, len(x), points // 2 + 1).astype(int)
    chosen: set[int] = set()
    for start, end in itertools.pairwise(edges):
        interval = y[start:end]
        chosen |= {int(start + interval.argmin()), int(start + interval.argmax())}
    order = np.array(sorted(chosen))
    return x[order], y[order]


def _rolling_shares(counts: Floats, window: int) -> Floats:
    """Each dataset's share of the samples in the `window` batches around each batch.

    Near the ends the window is cut to the batches that are there.

    >>> _rolling_shares(np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), 3)[:, 0]
    array([0.5       , 0.66666667, 0.5       ])
    """
    rows = len(counts)
    sums = np.vstack([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    start = np.maximum(np.arange(rows) - window // 2, 0)
    end = np.minimum(np.arange(rows) - window // 2 + window, rows)
    inside = sums[end] - sums[start]
    total = inside.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(inside, total, out=np.zeros_like(inside), where=total > 0)
    return shares


def _rates(t_s: Floats, amounts: Floats, groups: int) -> tuple[Floats, Floats]:
    """Amounts a second as a staircase: times of the edges, and the rate up to each edge.

    Groups hold equally many batches, so that a stall is a dip, not an artefact of where the edge of
    a time bin happened to fall.
    """
    order = np.argsort(t_s, kind="stable")
    times = np.concatenate([[min(0.0, float(t_s.min(initial=0.0)))], t_s[order]])
    done = np.concatenate([[0.0], np.cumsum(amounts[order])])
    size = 1 if len(t_s) < 12 else max(4, -(-len(t_s) // groups))
    edges = np.append(np.arange(0, len(times) - 1, size), len(times) - 1)
    if len(edges) > 2 and edges[-1] - edges[-2] < size / 2:  # a small rest joins its neighbour
        edges = np.delete(edges, -2)
    span = np.diff(times[edges])
    edges = np.concatenate([edges[:1], edges[1:][span > 0]])  # batches of one instant join the next
    return times[edges[1:]], np.diff(done[edges]) / np.diff(times[edges])


def _quantile_curve(values: Floats, points: int = _POINTS) -> tuple[Floats, Floats]:
    """Values in order and, for each, the share of all that are not larger.

    Where there are too many, the points lie densest in the slow tail, which is what one looks for.
    """
    ordered = np.sort(values[np.isfinite(values)])
    count = len(ordered)
    parts = np.arange(1, count + 1) / max(count, 1)
    if count <= points:
        return ordered, parts
    tail = 1 - np.logspace(0, -np.log10(count), points // 2)
    picks = np.unique(np.concatenate([tail, np.linspace(0, 1, points // 2)]) * (count - 1))
    index = np.unique(picks.round().astype(int))
    return ordered[index], parts[index]
