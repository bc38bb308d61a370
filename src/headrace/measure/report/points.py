"""Fewer points for the same picture: rolling means, peaks kept, percentiles. Pure."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

__all__ = ["POINTS", "quantile_curve", "rates", "reduced", "rolling_shares"]

Floats = NDArray[np.float64]
#: Most points of one line: about one a pixel of the plots, which are 660 wide.
POINTS = 600


def reduced(x: Floats, y: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """At most that many points, with the lowest and the highest of every stretch among them.

    >>> x, y = reduced(np.arange(1000.0), np.eye(1, 1000, 500)[0], 10)
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
        stretch = y[start:end]
        chosen |= {int(start + stretch.argmin()), int(start + stretch.argmax())}
    order = np.array(sorted(chosen))
    return x[order], y[order]


def rolling_shares(counts: Floats, window: int) -> Floats:
    """Each dataset's share of the samples in the `window` batches around each batch.

    Near the ends the window is cut to the batches that are there.

    >>> rolling_shares(np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), 3)[:, 0]
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


def rates(t_s: Floats, amount: Floats, groups: int = 150) -> tuple[Floats, Floats]:
    """Amount a second as a staircase: times of the edges, and the rate up to each edge.

    Groups hold equally many batches, so that a stall is a dip, not an artefact of where the edge of
    a time bin happened to fall.
    """
    order = np.argsort(t_s, kind="stable")
    times = np.concatenate([[min(0.0, float(t_s.min(initial=0.0)))], t_s[order]])
    done = np.concatenate([[0.0], np.cumsum(amount[order])])
    size = 1 if len(t_s) < 12 else max(4, -(-len(t_s) // groups))
    edges = np.append(np.arange(0, len(times) - 1, size), len(times) - 1)
    if len(edges) > 2 and edges[-1] - edges[-2] < size / 2:  # a small rest joins its neighbour
        edges = np.delete(edges, -2)
    span = np.diff(times[edges])
    edges = np.concatenate([edges[:1], edges[1:][span > 0]])  # batches of one instant join the next
    return times[edges[1:]], np.diff(done[edges]) / np.diff(times[edges])


def quantile_curve(values: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """Values in order and, for each, the share of all that are not larger.

    Where there are too many, the points lie densest in the slow tail, which is what one looks for.
    """
    ordered = np.sort(values[np.isfinite(values)])
    count = len(ordered)
    share = np.arange(1, count + 1) / max(count, 1)
    if count <= points:
        return ordered, share
    tail = 1 - np.logspace(0, -np.log10(count), points // 2)
    picks = np.unique(np.concatenate([tail, np.linspace(0, 1, points // 2)]) * (count - 1))
    index = np.unique(picks.round().astype(int))
    return ordered[index], share[index]
