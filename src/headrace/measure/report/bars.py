"""Horizontal bars and dots, one row a name: shares asked and served, stages busy and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.measure.report.axis import Axis
from headrace.measure.report.chart import WIDTH, Measure
from headrace.measure.report.svg import Drawing, shortened, wide

__all__ = ["Row", "bar_chart", "dot_chart"]

_TOP, _BOTTOM, _RIGHT = 66.0, 46.0, 140.0
_GROUP = 32.0
_LETTERS = 36


@dataclass(frozen=True, slots=True)
class Row:
    """A name and its values, in the order of the chart's series; None: not known."""

    label: str
    values: Sequence[float | None]
    #: A heading above the row, where a new group begins.
    group: str = ""


def bar_chart(
    name: str, title: str, rows: Sequence[Row], series: Sequence[str], x: Measure
) -> Drawing:
    """For each row one bar a series, below each other, with the values after the longest."""
    bar = 9.0 if len(series) > 1 else 12.0
    step = bar * len(series) + 8
    drawing, across = _paper(name, title, rows, step, x)
    left = 0.0
    for number, word in enumerate(series):
        drawing.box(left, 32, 18, 12, drawing.hatch(_style(number)), word)
        drawing.text(left + 24, 42, word)
        left += 44 + wide(word)
    y = _TOP
    for row in rows:
        if row.group:
            drawing.text(0, y + 20, shortened(row.group, 100), "head", full=row.group)
            y += _GROUP
        middle = y + step / 2
        label = shortened(row.label, _LETTERS)
        drawing.text(across.start - 8, middle + 4, label, anchor="end", full=row.label)
        for number, value in enumerate(row.values):
            top = y + 4 + number * bar
            words = "not known" if value is None else x.words(value)
            hint = f"{row.label}, {series[number]}: {words}"
            end = across.at(value or 0.0)
            drawing.box(
                across.start, top, end - across.start, bar - 1, drawing.hatch(_style(number)), hint
            )
        known = [value for value in row.values if value is not None]
        figures = " / ".join("?" if value is None else x.words(value) for value in row.values)
        drawing.text(across.at(max(known, default=0.0)) + 6, middle + 4, figures, "soft small")
        y += step
    return drawing


def dot_chart(
    name: str, title: str, rows: Sequence[Row], runs: Sequence[tuple[str, int]], x: Measure
) -> Drawing:
    """For each row a marker a run, and a bar mark for the first value, which is what was asked.

    Rows hold the asked value first, then one a run; runs are (label, style).
    """
    step = 19.0
    keys = -(-len(runs) // 4) - 1  # rows of the key beyond the first
    drawing, across = _paper(name, title, rows, step, x, 18.0 * keys)
    drawing.rule((4, 32), (4, 44), "inkline")
    drawing.text(12, 42, "asked")
    for number, (label, style) in enumerate(runs):
        left, top = 70 + number % 4 * 215, 38 + number // 4 * 18
        drawing.marker(left, top, style, label)
        drawing.text(left + 9, top + 4, shortened(label, 28), full=label)
    y = _TOP + 18.0 * keys
    for row in rows:
        middle = y + step / 2
        label = shortened(row.label, _LETTERS)
        drawing.text(across.start - 8, middle + 4, label, anchor="end", full=row.label)
        drawing.rule((across.start, middle), (across.end, middle))
        if (asked := row.values[0]) is not None:
            place = across.at(asked)
            drawing.rule((place, middle - 7), (place, middle + 7), "inkline")
        for (run, style), value in zip(runs, row.values[1:], strict=True):
            if value is not None:
                hint = f"{row.label}, {run}: {x.words(value)}"
                drawing.marker(across.at(value), middle, style, hint)
        y += step
    return drawing


def _style(number: int) -> int:
    """Plain, then slanted: the two that differ most."""
    return (0, 1, 6)[number % 3]


def _paper(
    name: str, title: str, rows: Sequence[Row], step: float, x: Measure, more: float = 0.0
) -> tuple[Drawing, Axis]:
    groups = sum(bool(row.group) for row in rows)
    height = _TOP + _BOTTOM + len(rows) * step + groups * _GROUP + more
    drawing = Drawing(name, WIDTH, height, title)
    drawing.text(0, 18, title, "head")
    longest = max((len(shortened(row.label, _LETTERS)) for row in rows), default=0)
    values = [v for row in rows for v in row.values if v is not None]
    left = max(wide("x" * longest) + 14, 80.0)
    low = min(values, default=0.0)
    # Bars begin at zero. Marks need not: where they lie close together, their differences show.
    low = low - 0.1 * abs(low) if not x.from_zero and low > 0.4 * max(values) else 0.0
    across = Axis.around(low, max(values, default=1.0), left, WIDTH - _RIGHT)
    foot = height - _BOTTOM + 6
    for value, words in across.ticks(x.words):
        drawing.rule((across.at(value), _TOP + more - 4), (across.at(value), foot))
        drawing.text(across.at(value), foot + 14, words, "soft", "middle")
    drawing.text((across.start + across.end) / 2, foot + 32, x.title, "soft", "middle")
    return drawing, across
