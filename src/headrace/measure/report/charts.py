"""Kinds of charts: lines, bars, dots, stacked shares. Each returns a `Plot`.

Lines, markers and areas differ in dashes, shape and hatching as well as in colour, and carry their
labels beside them. Places beside the axes are given in points from the upper left corner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.measure import theme
from headrace.measure.quantities import amount, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Bands",
    "Bar",
    "Line",
    "Plot",
    "Scale",
    "bar_chart",
    "dot_chart",
    "line_chart",
    "nothing",
    "stacked_areas",
    "stacked_columns",
]

Floats = NDArray[np.float64]
#: Names and styles of bands, from the bottom up; the style None is for the rest.
Bands = Sequence[tuple[str, int | None]]

_WIDTH, _TOP, _BOTTOM = 940.0, 40.0, 48.0
_ROW = 16.0
#: Mean width of a letter of the normal text; generous, as fonts differ from browser to browser.
_LETTER = 7.0
_SMALL, _HEAD = 11, 15


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with what it says, or the reason why there is none."""

    name: str  #: of its file, and of the figure in a page
    title: str
    caption: str  #: how to read it, or why there is nothing to read
    svg: theme.Svg
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """What an axis shows. On "nines", 0, 90%, 99% and 99.9% lie equally far apart."""

    title: str
    words: Callable[[float], str]
    kind: Literal["linear", "log", "nines"] = "linear"
    from_zero: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One line of a chart."""

    label: str
    x: Floats
    y: Floats
    style: int
    marks: Sequence[tuple[float, float]] = ()  #: places on the line
    notes: Sequence[str] = ()  #: below the label
    steps: bool = False  #: each value holds for the interval before it


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar or dot chart: a value for each series; None: not known."""

    label: str
    values: Sequence[float | None]
    group: str = ""  #: a heading above the row, where a new group begins
    mark: float | None = None  #: a value to compare with
    span: tuple[float, float] | None = None  #: lowest and highest of what the value stands for


def line_chart(
    name: str,
    title: str,
    caption: str,
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
    levels: Sequence[tuple[float, str]] = (),
    follow: bool = True,
) -> Plot:
    """Lines with labels that follow their ends, or else stand in order as a key.

    `levels` are horizontal lines with a name: limits and budgets.
    """
    rows = sum(1 + len(line.notes) for line in lines)
    height = max(330.0, _TOP + _BOTTOM + rows * _ROW)
    with theme.style():
        figure, axes = _canvas(title, height, left=84.0, right=220.0)
        _set_scale(axes, "x", x, [line.x for line in lines])
        _set_scale(axes, "y", y, [*(line.y for line in lines), np.array([v for v, _ in levels])])
        for value, _ in levels:
            axes.axhline(value, color=theme.INK, linewidth=1, linestyle=(0, (3, 3)))
        for line in lines:
            _draw_line(axes, line)
        for value, text in levels:  # over the lines, so that its halo keeps it readable
            axes.annotate(
                theme.printable(text),
                *((0, value), (6, 4)),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=_SMALL,
            )
        ends = [height - axes.transData.transform((0.0, float(line.y[-1])))[1] for line in lines]
        order = np.argsort(ends, kind="stable") if follow else np.arange(len(lines))
        sizes = [(1 + len(lines[i].notes)) * _ROW for i in order]
        wanted = [ends[i] - _ROW / 2 if follow else 0.0 for i in order]
        tops = _spread(wanted, sizes, _TOP - 4, height - _BOTTOM + 8)
        for i, top in zip(order, tops, strict=True):
            _label_line(figure, axes, lines[i], top + _ROW / 2, ends[i] if follow else None)
        return _plot(name, title, caption, figure)


def bar_chart(
    name: str,
    title: str,
    caption: str,
    rows: Sequence[Bar],
    series: Sequence[str],
    x: Scale,
    mark: str = "",
) -> Plot:
    """For each row one bar a series, with its figures behind the longest.

    `mark` names what the rows' marks are: upright lines, shown first among the figures.
    """
    from matplotlib.patches import Rectangle

    thick = 9.0 if len(series) > 1 else 12.0
    with theme.style():
        figure, axes, places = _row_canvas(title, rows, thick * len(series) + 8, x)
        left = 0.0
        keys = [*series, mark] if mark else series
        for number, word in enumerate(keys if len(keys) > 1 else ()):
            if number < len(series):
                _swatch(figure, left, 38, theme.area(number))
            else:
                _segment(figure, [(left + 9, 32), (left + 9, 44)], theme.INK, 2)
            _text(figure, left + 26, 38, word)
            left += 46 + _LETTER * len(word)
        for row, place in zip(rows, places, strict=True):
            for number, value in enumerate(row.values):
                y = place + (number - (len(series) - 1) / 2) * thick
                corner = (0.0, y - (thick - 1) / 2)
                patch = Rectangle(corner, value or 0.0, thick - 1, **theme.area(number))
                axes.add_artist(patch)
                known = "not known" if value is None else x.words(value)
                theme.hint(patch, f"{row.label}, {series[number]}: {known}")
            half = thick * len(series) / 2 + 1
            if row.span is not None:
                axes.plot(row.span, [place, place], color=theme.INK, linewidth=1.2)
                axes.vlines(row.span, place - 4, place + 4, color=theme.INK, linewidth=1.2)
            if row.mark is not None:
                axes.vlines(row.mark, place - half, place + half, color=theme.INK, linewidth=2)
            shown = [*([row.mark] if mark else []), *row.values]
            figures = " / ".join("?" if v is None else x.words(v) for v in shown)
            if row.span is not None:
                figures += f" ({x.words(row.span[0])} to {x.words(row.span[1])})"
            end = max((v for v in (*shown, *(row.span or ())) if v is not None), default=0.0)
            axes.annotate(
                figures,
                *((end, place), (7, 0)),
                textcoords="offset points",
                color=theme.SOFT,
                fontsize=_SMALL,
                va="center",
                annotation_clip=False,
            )
        return _plot(name, title, caption, figure)


def dot_chart(
    name: str,
    title: str,
    caption: str,
    rows: Sequence[Bar],
    series: Sequence[tuple[str, int]],
    x: Scale,
    mark: str,
) -> Plot:
    """For each row a marker a series (label and style), and an upright line for its mark."""
    columns = 4
    more = 18.0 * (-(-(len(series) + 1) // columns) - 1)
    with theme.style():
        figure, axes, places = _row_canvas(title, rows, 19.0, x, more)
        for number, (label, style) in enumerate([(mark, None), *series]):
            left, top = 9 + number % columns * 215, 38 + number // columns * 18
            if style is None:
                _segment(figure, [(left, top - 6), (left, top + 6)], theme.INK, 2)
            else:
                _segment(figure, [(left, top)], **_marker(style))
            _text(figure, left + 10, top, theme.printable(label, 28), full=label)
        axes.hlines(places, *axes.get_xlim(), color=theme.RULE, linewidth=1, zorder=0.5)
        for row, place in zip(rows, places, strict=True):
            if row.mark is not None:
                axes.vlines(row.mark, place - 7, place + 7, color=theme.INK, linewidth=2)
            for (label, style), value in zip(series, row.values, strict=True):
                if value is not None:
                    (dot,) = axes.plot([value], [place], clip_on=False, **_marker(style))
                    theme.hint(dot, f"{row.label}, {label}: {x.words(value)}")
        return _plot(name, title, caption, figure)


def stacked_areas(
    name: str, title: str, caption: str, x: Floats, bands: Bands, shares: Floats
) -> Plot:
    """Shares over batches as areas, each labelled at its right end with its mean share."""
    from matplotlib.patches import Polygon

    if len(x) == 1:  # one batch alone still is an area
        x, shares = np.array([x[0] - 0.5, x[0] + 0.5]), np.vstack([shares, shares])
    mean, tops = shares.mean(axis=0), np.cumsum(shares, axis=1)
    with theme.style():
        figure, axes = _share_canvas(title)
        _set_scale(axes, "x", Scale("batch", amount), [x])
        for number, (label, style) in enumerate(bands):
            upper, lower = tops[:, number], tops[:, number] - shares[:, number]
            outline = np.stack(
                [np.concatenate([x, x[::-1]]), np.concatenate([upper, lower[::-1]])], axis=1
            )
            patch = axes.add_artist(Polygon(outline, **theme.area(style)))
            theme.hint(patch, f"{label}: {share(float(mean[number]), 1)} in the mean")
        _label_bands(figure, axes, bands, mean, tops[-1] - shares[-1] / 2, lead=True)
        return _plot(name, title, caption, figure)


def stacked_columns(
    name: str, title: str, caption: str, groups: Sequence[tuple[str, Floats]], bands: Bands
) -> Plot:
    """Groups of neighbouring batches, one column a batch, each group under its first number."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    mean = np.mean(np.vstack([shares for _, shares in groups]), axis=0)
    slot = max(max(len(shares) for _, shares in groups), 5) + 1
    lefts = np.concatenate([slot * n + np.arange(len(s)) for n, (_, s) in enumerate(groups)])
    upper = np.cumsum(np.vstack([shares for _, shares in groups]), axis=1)
    with theme.style():
        figure, axes = _share_canvas(title)
        axes.set_xlim(-0.5, slot * len(groups) - 0.5)
        shown = range(0, len(groups), -(-len(groups) // 12))
        middles = [slot * n + len(groups[n][1]) / 2 for n in shown]
        axes.set_xticks(middles, [groups[n][0] for n in shown])
        axes.tick_params(axis="x", length=0, pad=8)
        axes.set_xlabel("first batch of each group")
        for number, (label, style) in enumerate(bands):
            top = upper[:, number]
            low = upper[:, number - 1] if number else np.zeros(len(top))
            corners = [(0, low), (1, low), (1, top), (0, top), (0, low)]
            points = np.stack([np.stack([lefts + dx, y], axis=1) for dx, y in corners], axis=1)
            points = points[top - low > 1e-4].reshape(-1, 2)
            if not len(points):
                continue
            codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
            # One path for all columns of a band keeps the file small.
            path = Path(points, np.tile(np.array(codes, dtype=Path.code_type), len(points) // 5))
            patch = axes.add_artist(PathPatch(path, **theme.area(style)))
            theme.hint(patch, f"{label}: {share(float(mean[number]), 1)} in the mean")
        _label_bands(figure, axes, bands, mean, np.cumsum(mean) - mean / 2, lead=False)
        return _plot(name, title, caption, figure)


def nothing(name: str, title: str, why: str) -> Plot:
    """A figure that says why there is none."""
    with theme.style():
        figure = theme.figure(_WIDTH, 70)
        _text(figure, 0, 12, theme.printable(title), fontsize=_HEAD, fontweight="bold")
        _text(figure, 0, 44, f"Nothing to show: {theme.printable(why)}")
        return Plot(name, title, why, theme.svg(figure, title, name), empty=True)


def _plot(name: str, title: str, caption: str, figure: Figure) -> Plot:
    return Plot(name, title, caption, theme.svg(figure, title, name))


# -- canvases and axes -----------------------------------------------------------------------------


def _canvas(
    title: str, height: float, left: float, right: float, top: float = _TOP
) -> tuple[Figure, Axes]:
    figure = theme.figure(_WIDTH, height)
    box = (left, _BOTTOM, _WIDTH - left - right, height - top - _BOTTOM)
    axes = figure.add_axes(
        tuple(v / whole for v, whole in zip(box, (_WIDTH, height) * 2, strict=True))  # type: ignore[arg-type]
    )
    axes.patch.set_visible(False)
    _text(figure, 0, 12, theme.printable(title), fontsize=_HEAD, fontweight="bold")
    return figure, axes


def _share_canvas(title: str) -> tuple[Figure, Axes]:
    figure, axes = _canvas(title, 400.0, left=62.0, right=250.0)
    _set_scale(axes, "y", Scale("share of samples", share), [])
    axes.set_ylim(0, 1)
    return figure, axes


def _row_canvas(
    title: str, rows: Sequence[Bar], step: float, x: Scale, more: float = 0.0
) -> tuple[Figure, Axes, list[float]]:
    """A canvas with a line of text for each row; and the rows' places on its upright axis."""
    top, gap, letters = 60.0 + more, 30.0, 36
    places, y = [], 0.0
    for row in rows:
        y += gap if row.group else 0.0
        places.append(y + step / 2)
        y += step
    label = max((len(theme.printable(row.label, letters)) for row in rows), default=0)
    left = max(_LETTER * label + 14, 80.0)
    figure, axes = _canvas(title, top + y + _BOTTOM, left, 150.0, top)
    every = [row.values for row in rows] + [row.span or () for row in rows]
    values = [v for values in every for v in values if v is not None]
    values += [row.mark for row in rows if row.mark is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    # Bars begin at zero. Marks need not: where they lie close together, their differences show.
    low = low - 0.1 * abs(low) if not x.from_zero and low > 0.4 * high else min(low, 0.0)
    _set_scale(axes, "x", x, [np.array([low, high])])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.set_yticks([])
    axes.set_ylim(y, 0)
    for row, place in zip(rows, places, strict=True):
        words = theme.printable(row.label, letters)
        _text(figure, left - 8, top + place, words, row.label, ha="right")
        if row.group:
            group = theme.printable(row.group, 100)
            _text(figure, 0, top + place - step / 2 - 10, group, row.group, fontweight="bold")
    return figure, axes, places


def _set_scale(axes: Axes, which: Literal["x", "y"], scale: Scale, columns: list[Floats]) -> None:
    from matplotlib import ticker

    values = np.concatenate([np.zeros(0), *columns])
    values = values[np.isfinite(values) & ((scale.kind != "log") | (values > 0))]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    locator: ticker.Locator
    if scale.kind == "nines":
        axes.set_yscale("function", functions=(_from_share, _to_share))
        low = 0.0
        shares = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
        locator = ticker.FixedLocator([value for value in shares if value <= high])
    elif scale.kind == "log":
        low, high = (low, high) if high / low >= 1.5 else (low / 1.5, high * 1.5)
        axes.set_xscale("log")
        if high / low < 8:
            locator = ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
        else:
            locator = ticker.LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,), numticks=8)
    else:
        low, high = (min(low, 0.0), high * 1.06) if scale.from_zero else (low, high)
        if high - low <= max(abs(high), abs(low)) * 1e-9:
            low, high = (low - abs(low) / 2, high + abs(high) / 2) if high else (0.0, 1.0)
        locator = ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: scale.words(value)))
    axis.set_label_text(scale.title)
    if which == "y":
        axis.set_label_coords((14 - axes.bbox.x0) / axes.bbox.width, 0.5)


def _from_share(value: Any) -> Any:
    return -np.log10(np.maximum(1 - np.asarray(value), 1e-9))


def _to_share(value: Any) -> Any:
    return 1 - 10.0 ** -np.asarray(value)


# -- parts -----------------------------------------------------------------------------------------


def _draw_line(axes: Axes, line: Line) -> None:
    look = theme.line(line.style)
    steps: Literal["steps-pre", "default"] = "steps-pre" if line.steps else "default"
    (path,) = axes.plot(line.x, line.y, clip_on=False, **(look | {"marker": ""}), drawstyle=steps)
    theme.hint(path, ", ".join((line.label, *line.notes)))
    marks = line.marks if len(line.x) > 1 else [(float(line.x[0]), float(line.y[0]))]
    if marks:
        axes.plot(*zip(*marks, strict=True), clip_on=False, zorder=3, **_marker(line.style))


def _label_line(figure: Figure, axes: Axes, line: Line, y: float, end: float | None) -> None:
    right = axes.bbox.x1
    left = right + 34
    if end is not None:  # from the line's end to the label
        last = axes.transData.transform((float(line.x[-1]), 0.0))[0]
        dotted = (0, (1, 3))
        _segment(figure, [(last, end), (right, end)], theme.RULE, 1, linestyle=dotted)
        _segment(figure, [(right, end), (left - 26, y)], theme.RULE, 1)
    look = theme.line(line.style) | {"marker": ""}
    _segment(figure, [(left - 26, y), (left - 4, y)], linewidth=1.8, **look)
    if line.marks:
        _segment(figure, [(left - 15, y)], **(_marker(line.style) | {"markersize": 7}))
    _text(figure, left, y, theme.printable(line.label, 25), line.label)
    for number, note in enumerate(line.notes, 1):
        words = theme.printable(note)
        _text(figure, left, y + number * _ROW, words, color=theme.SOFT, fontsize=_SMALL)


def _label_bands(
    figure: Figure, axes: Axes, bands: Bands, mean: Floats, middles: Floats, lead: bool
) -> None:
    """A swatch, the name and the mean share of each band, from the top down."""
    row, height, right = 17.0, figure.bbox.height, axes.bbox.x1
    places = [height - axes.transData.transform((0.0, float(middle)))[1] for middle in middles]
    order = range(len(bands) - 1, -1, -1)
    wanted = [places[i] - row / 2 for i in order]
    tops = _spread(wanted, [row] * len(bands), _TOP - 6, height - 20)
    for i, top in zip(order, tops, strict=True):
        label, style = bands[i]
        y = top + row / 2
        if lead:
            _segment(figure, [(right + 1, places[i]), (right + 22, y)], theme.SOFT, 0.8)
        _swatch(figure, right + 24, y, theme.area(style))
        words = f"{theme.printable(label, 24)}  {share(float(mean[i]), 1)}"
        _text(figure, right + 48, y, words, label)


def _spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> Floats:
    """Tops of labels near to where they are wanted, in that order, none over another.

    >>> _spread([42, 44, 82], [16, 16, 16], 0, 200)
    array([35., 51., 82.])
    """
    offsets = np.concatenate([[0.0], np.cumsum(sizes)])
    free = np.asarray(wanted, float) - offsets[:-1]  # places if labels took up no room
    # Pushed down where they overlap, and pushed up: halfway lies each group around its middle.
    down, up = np.maximum.accumulate(free), np.minimum.accumulate(free[::-1])[::-1]
    fitted = np.clip((down + up) / 2, low, max(high - offsets[-1], low))
    tops: Floats = fitted + offsets[:-1]
    return tops


def _marker(style: int) -> dict[str, Any]:
    return theme.line(style) | {"linestyle": "none"}


def _swatch(figure: Figure, x: float, y: float, look: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    figure.add_artist(Rectangle((x, y - 6), 18, 12, transform=_from_top(figure), **look))


def _segment(
    figure: Figure,
    points: Sequence[tuple[float, float]],
    color: str,
    linewidth: float = 1,
    **look: Any,
) -> None:
    from matplotlib.lines import Line2D

    look = {"color": color, "linewidth": linewidth, "transform": _from_top(figure)} | look
    figure.add_artist(Line2D(*zip(*points, strict=True), **look))


def _text(figure: Figure, x: float, y: float, words: str, full: str = "", **look: Any) -> None:
    """Words at a place; `full` is shown when a pointer rests on them."""
    text = figure.text(x, y, words, transform=_from_top(figure), **({"va": "center"} | look))
    if full and full != words:
        theme.hint(text, full)


def _from_top(figure: Figure) -> Any:
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(1, -1).translate(0, figure.bbox.height)
