"""Shares that add up to one: stacked areas and stacked columns, hatched and labelled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.measure.quantities import amount, share
from headrace.measure.report.axis import Axis
from headrace.measure.report.chart import WIDTH, Measure, draw_axes, spread
from headrace.measure.report.svg import Drawing, shortened

__all__ = ["Bands", "gathered", "stacked_areas", "stacked_columns"]

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 62.0, 250.0, 40.0, 48.0, 400.0
_ROW = 17.0

Floats = NDArray[np.float64]
#: Names and styles of bands, from the bottom up; the style None is for the rest.
Bands = Sequence[tuple[str, int | None]]


def gathered(names: Sequence[str], counts: Floats, most: int = 12) -> tuple[Bands, Floats]:
    """The datasets with most samples as bands, largest first, and the others added up as one.

    >>> bands, columns = gathered(["a", "b", "c"], np.array([[1.0, 5.0, 2.0]]), most=1)
    >>> bands, columns
    ([('b', 0), ('other (2)', None)], array([[5., 3.]]))
    """
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    # One dataset alone is shown under its own name rather than as "other (1)".
    cut = len(order) if len(order) <= most + 1 else most
    bands: list[tuple[str, int | None]] = [(names[i], n) for n, i in enumerate(order[:cut])]
    columns = counts[:, order[:cut]]
    if cut < len(order):
        bands.append((f"other ({len(order) - cut})", None))
        columns = np.hstack([columns, counts[:, order[cut:]].sum(axis=1, keepdims=True)])
    return bands, columns


def stacked_areas(name: str, title: str, x: Floats, bands: Bands, shares: Floats) -> Drawing:
    """Shares over batches as areas, each labelled at its right end with its share at the end."""
    drawing, up = _paper(name, title)
    across = Axis.around(float(x[0]), float(x[-1]), _LEFT, WIDTH - _RIGHT)
    if len(x) == 1:  # one batch alone still is an area
        x, shares = np.array([across.low, across.high]), np.vstack([shares, shares])
    _axes(drawing, across, up, "batch")
    tops = np.cumsum(shares, axis=1)
    places = [across.at(value) for value in x.tolist()]
    for number, (label, style) in enumerate(bands):
        upper = [up.at(value) for value in tops[:, number].tolist()]
        lower = [up.at(value) for value in (tops[:, number] - shares[:, number]).tolist()]
        outline = [*zip(places, upper, strict=True)]
        outline += [*zip(places[::-1], lower[::-1], strict=True)]
        drawing.area(outline, drawing.hatch(style), label)
    mean = shares.mean(axis=0)
    middles = [up.at(float(value)) for value in (tops[-1] - shares[-1] / 2)]
    _labels(drawing, bands, mean, middles)
    return drawing


def stacked_columns(
    name: str, title: str, groups: Sequence[tuple[str, Floats]], bands: Bands
) -> Drawing:
    """Groups of neighbouring batches, one column a batch, each group under its first number."""
    drawing, up = _paper(name, title)
    drawing.text(_LEFT, up.start + 38, "first batch of each group", "soft")
    for value, words in up.ticks(share):
        drawing.rule((_LEFT, up.at(value)), (WIDTH - _RIGHT, up.at(value)))
        drawing.text(_LEFT - 8, up.at(value) + 4, words, "soft", "end")
    drawing.turned(13, (up.start + up.end) / 2, "share of samples", "soft")
    slot = (WIDTH - _RIGHT - _LEFT) / max(len(groups), 1)
    every = max(1, round(34 / slot + 0.49))  # labels of narrow groups would run into each other
    for number, (label, shares) in enumerate(groups):
        left = _LEFT + number * slot + slot * 0.08
        width = min(slot * 0.84 / max(len(shares), 1), 26.0)
        for row, column in enumerate(shares.tolist()):
            level = 0.0
            for (band, style), part in zip(bands, column, strict=True):
                top, bottom = up.at(level + part), up.at(level)
                level += part
                if bottom - top >= 0.05:
                    hint = f"{band}: {share(part, 1)}"
                    drawing.box(
                        left + row * width, top, width, bottom - top, drawing.hatch(style), hint
                    )
        if number % every == 0:
            middle = left + width * len(shares) / 2
            drawing.text(middle, up.start + 19, label, "soft", "middle")
    mean = np.mean(np.vstack([shares for _, shares in groups]), axis=0)
    level = np.cumsum(mean) - mean / 2
    _labels(drawing, bands, mean, [up.at(float(value)) for value in level], lead=False)
    return drawing


def _paper(name: str, title: str) -> tuple[Drawing, Axis]:
    drawing = Drawing(name, WIDTH, _HEIGHT, title)
    drawing.text(0, 18, title, "head")
    return drawing, Axis(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)


def _axes(drawing: Drawing, across: Axis, up: Axis, title: str) -> None:
    shares = Measure("share of samples", share)
    draw_axes(drawing, across, up, Measure(title, amount), shares)


def _labels(
    drawing: Drawing, bands: Bands, mean: Floats, middles: Sequence[float], lead: bool = True
) -> None:
    """A swatch, the name and the mean share of each band, from the top down."""
    right = WIDTH - _RIGHT
    order = list(range(len(bands)))[::-1]
    tops = spread([middles[i] for i in order], [_ROW] * len(order), _TOP - 6, _HEIGHT - 20)
    for i, top in zip(order, tops, strict=True):
        label, style = bands[i]
        middle = top + _ROW / 2
        if lead:
            drawing.rule((right + 1, middles[i]), (right + 22, middle), "axis")
        drawing.box(right + 24, middle - 6, 18, 12, drawing.hatch(style), label)
        words = f"{shortened(label, 24)}  {share(float(mean[i]), 1)}"
        drawing.text(right + 48, middle + 4, words, full=label)
