"""Charts of lines: axes, dashes and markers that differ, and a label for each line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.measure.report.axis import Axis, Scale
from headrace.measure.report.svg import Drawing, shortened, wide

__all__ = ["WIDTH", "Line", "Measure", "draw_axes", "line_chart", "spread"]

WIDTH = 940.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 220.0, 40.0, 48.0
_ROW = 16.0
_LETTERS = 25

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One line of a chart."""

    label: str
    x: Floats
    y: Floats
    #: Which colour, dashes and marker.
    style: int
    #: Places on the line that are marked.
    marks: Sequence[tuple[float, float]] = ()
    #: More words below the label.
    notes: Sequence[str] = ()
    #: Keep the value until the next point.
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """What an axis shows."""

    title: str
    words: Callable[[float], str]
    scale: Scale = "linear"
    #: Begin at zero, whatever the smallest value.
    from_zero: bool = False


def line_chart(
    name: str,
    title: str,
    lines: Sequence[Line],
    x: Measure,
    y: Measure,
    levels: Sequence[tuple[float, str]] = (),
    follow: bool = True,
) -> Drawing:
    """A chart of lines; labels follow the lines' ends, or else stand in order as a key.

    `levels` are horizontal lines with a name: limits and budgets.
    """
    rows = sum(1 + len(line.notes) for line in lines)
    height = max(330.0, _TOP + _BOTTOM + rows * _ROW)
    drawing = Drawing(name, WIDTH, height, title)
    drawing.text(0, 18, title, "head")
    across = _axis([line.x for line in lines], x, _LEFT, WIDTH - _RIGHT)
    values = [*(line.y for line in lines), np.array([value for value, _ in levels])]
    up = _axis(values, y, height - _BOTTOM, _TOP)
    draw_axes(drawing, across, up, x, y)
    for value, _ in levels:
        drawing.rule((across.start, up.at(value)), (across.end, up.at(value)), "inkline", "3 3")
    for line in lines:
        _draw(drawing, line, across, up)
    for value, text in levels:  # over the lines, so that its halo keeps it readable
        drawing.text(across.start + 6, up.at(value) - 4, text, "small")
    ends = [up.at(float(line.y[-1])) for line in lines] if follow else [0.0] * len(lines)
    order = np.argsort(ends, kind="stable")
    sizes = [(1 + len(lines[i].notes)) * _ROW for i in order]
    tops = spread([ends[i] for i in order], sizes, _TOP, height - _BOTTOM)
    for i, top in zip(order, tops, strict=True):
        _label(drawing, lines[i], top, across, (across.at(float(lines[i].x[-1])), ends[i]), follow)
    return drawing


def draw_axes(drawing: Drawing, across: Axis, up: Axis, x: Measure, y: Measure) -> None:
    """Grid, ticks and titles."""
    for value, words in up.ticks(y.words):
        drawing.rule((across.start, up.at(value)), (across.end, up.at(value)))
        drawing.text(across.start - 8, up.at(value) + 4, words, "soft", "end")
    free = 0.0
    for value, words in across.ticks(x.words, 7):
        place = across.at(value)
        drawing.rule((place, up.start), (place, up.start + 5), "axis")
        if place - wide(words) / 2 >= free:  # a label that would touch the last one is left out
            drawing.text(place, up.start + 19, words, "soft", "middle")
            free = place + wide(words) / 2 + 4
    drawing.rule((across.start, up.start), (across.end, up.start), "axis")
    drawing.text((across.start + across.end) / 2, up.start + 38, x.title, "soft", "middle")
    drawing.turned(13, (up.start + up.end) / 2, y.title, "soft")


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Tops of labels as near as can be to where they are wanted (in order), none over another.

    >>> spread([50, 52, 90], [16, 16, 16], 0, 200)
    [35.0, 51.0, 82.0]
    """
    tops = [place - size / 2 for place, size in zip(wanted, sizes, strict=True)]
    # Labels that touch move as one group, to the mean of where its members would like to be.
    groups: list[tuple[float, float, list[int]]] = []
    for number in range(len(tops)):
        groups.append((tops[number], sizes[number], [number]))
        while len(groups) > 1 and groups[-2][0] + groups[-2][1] > groups[-1][0]:
            _, _, last = groups.pop()
            _, _, before = groups.pop()
            members = before + last
            heights = np.array([sizes[i] for i in members])
            offsets = np.concatenate([[0.0], np.cumsum(heights)[:-1]])
            top = float(np.mean([tops[i] - o for i, o in zip(members, offsets, strict=True)]))
            groups.append((_inside(top, heights.sum(), low, high), float(heights.sum()), members))
    placed: list[float] = []
    for top, size, members in groups:
        place = _inside(top, size, low, high)
        place = max(place, placed[-1] + sizes[len(placed) - 1]) if placed else place
        for i in members:
            placed.append(place)
            place += sizes[i]
    return [round(place, 1) for place in placed]


def _inside(top: float, size: float, low: float, high: float) -> float:
    return float(max(low, min(top, high - size)))


def _axis(columns: Sequence[Floats], measure: Measure, start: float, end: float) -> Axis:
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    if measure.scale == "log":
        values = values[values > 0]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if measure.from_zero:
        low, high = min(low, 0.0), high * 1.06
    return Axis.around(low, high, start, end, measure.scale)


def _draw(drawing: Drawing, line: Line, across: Axis, up: Axis) -> None:
    points: list[tuple[float, float]] = []
    for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
        place = (across.at(x), up.at(y))
        if line.steps and points:
            points.append((points[-1][0], place[1]))  # the value holds for the stretch before x
        points.append(place)
    drawing.line(points, line.style, ", ".join((line.label, *line.notes)))
    marks = line.marks if len(line.x) > 1 else [(float(line.x[0]), float(line.y[0]))]
    for x, y in marks:
        drawing.marker(across.at(x), up.at(y), line.style, line.label)


def _label(
    drawing: Drawing, line: Line, top: float, across: Axis, end: tuple[float, float], follow: bool
) -> None:
    left, middle = across.end + 34, top + _ROW / 2
    if follow:
        drawing.rule(end, (across.end, end[1]), "rule", "1 3")
        drawing.rule((across.end, end[1]), (left - 26, middle), "rule")
    drawing.line([(left - 26, middle), (left - 4, middle)], line.style, line.label)
    if line.marks:
        drawing.marker(left - 15, middle, line.style, line.label, 3.5)
    drawing.text(left, middle + 4, shortened(line.label, _LETTERS), full=line.label)
    for number, note in enumerate(line.notes, 1):
        drawing.text(left, middle + 4 + number * _ROW, note, "soft small")
