"""Kinds of charts: lines, bars, dots, stacked shares. Each returns a `Plot`.

Lines, markers and areas differ in dashes, shape and hatching as well as in colour, and have their
labels beside them.
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

Floats = NDArray[np.float64]
#: Names and styles of bands, from the bottom up; the style None is for the rest.
Bands = Sequence[tuple[str, int | None]]

_WIDTH, _TOP, _BOTTOM = 940.0, 40.0, 48.0
_ROW = 16.0  #: of labels
_SMALL, _HEAD = 11, 15
_KEYS = 4  #: beside each other


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
    """A row of a bar or dot chart; without values it is the heading of those below."""

    label: str
    values: Sequence[float | None]  #: one for each series; None: not known
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
    height = max(330.0, _TOP + _BOTTOM + _ROW * sum(1 + len(line.notes) for line in lines))
    with theme.style():
        figure, axes = _canvas(title, height, left=84.0, right=220.0)
        for value, _ in levels:
            axes.axhline(value, color=theme.INK, linewidth=1, linestyle=(0, (3, 3)))
        for line in lines:
            look = theme.line(line.style) | {"clip_on": False}
            steps: Any = "steps-pre" if line.steps else "default"
            (drawn,) = axes.plot(line.x, line.y, **look | {"marker": "", "drawstyle": steps})
            theme.hint(drawn, ", ".join((line.label, *line.notes)))
            marks = line.marks if len(line.x) > 1 else [(line.x[0], line.y[0])]
            if marks:
                axes.plot(*zip(*marks, strict=True), zorder=3, **look | {"linestyle": "none"})
        _set_scale(axes, "x", x)
        _set_scale(axes, "y", y)
        for value, text in levels:  # over the lines, so that its halo keeps it readable
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            axes.annotate(text, (0, value), (6, 4), fontsize=_SMALL, **place)  # type: ignore[arg-type]
        keys = [
            _Key((line.label, *line.notes), theme.line(line.style) | _unmarked(line))
            for line in lines
        ]
        ends = [(float(line.x[-1]), float(line.y[-1])) for line in lines]
        _label(figure, axes, keys, ends if follow else None)
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

    `mark` names what the rows' marks are: upright lines, first among the figures.
    """
    thick = 9.0 if len(series) > 1 else 12.0
    keys = len(series) + bool(mark)
    with theme.style():
        figure, axes = _row_canvas(title, rows, thick * len(series) + 8, keys if keys > 1 else 0)
        unit = 1 / (thick * len(series) + 8)
        handles = [_marks(axes, [row.mark for row in rows])] if mark else []
        for number, word in enumerate(series):
            values = [row.values[number] if row.values else None for row in rows]
            places = np.arange(len(rows)) + (number - (len(series) - 1) / 2) * thick * unit
            widths = [value or 0.0 for value in values]
            bars = axes.barh(places, widths, (thick - 1) * unit, **theme.area(number))
            for patch, row, value in zip(bars, rows, values, strict=True):
                known = "not known" if value is None else x.words(value)
                theme.hint(patch, f"{row.label}, {word}: {known}")
            handles.append(bars)
        for place, row in enumerate(rows):
            if row.span:
                axes.hlines(place, *row.span, color=theme.INK, linewidth=1.2)
            shown = [*([row.mark] if mark else []), *row.values]
            words = " / ".join("?" if value is None else x.words(value) for value in shown)
            words += " ({} to {})".format(*map(x.words, row.span)) if row.span else ""
            end = max((v for v in (*shown, *(row.span or ())) if v is not None), default=0.0)
            look: dict[str, Any] = {"color": theme.SOFT, "fontsize": _SMALL, "va": "center"}
            axes.annotate(words, (end, place), (7, 0), textcoords="offset points", **look)
        _set_scale(axes, "x", x)
        _draw_keys(axes, handles, [mark, *series] if mark else series)
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
    with theme.style():
        figure, axes = _row_canvas(title, rows, 19.0, len(series) + 1)
        axes.grid(visible=True, axis="y")
        handles = [_marks(axes, [row.mark for row in rows])]
        for number, (label, style) in enumerate(series):
            values = np.array([row.values[number] for row in rows], float)
            look = theme.line(style) | {"linestyle": "none", "clip_on": False}
            handles += axes.plot(values, np.arange(len(rows)), **look)
            theme.hint(handles[-1], label)
        low, high = axes.dataLim.intervalx
        # Marks need not begin at zero: where they lie close together, their differences show.
        axes.set_xlim(left=0.9 * low if low > 0.4 * high else min(low, 0.0))
        _set_scale(axes, "x", x)
        _draw_keys(axes, handles, [mark, *(label for label, _ in series)])
        return _plot(name, title, caption, figure)


def stacked_areas(
    name: str, title: str, caption: str, x: Floats, bands: Bands, shares: Floats
) -> Plot:
    """Shares over batches as areas, each labelled at its right end with its mean share."""
    if len(x) == 1:  # one batch alone still is an area
        x, shares = np.array([x[0] - 0.5, x[0] + 0.5]), np.vstack([shares, shares])
    tops = np.cumsum(shares, axis=1)
    with theme.style():
        figure, axes = _canvas(title, 400.0, left=62.0, right=250.0)
        for number, (label, style) in enumerate(bands):
            lower = tops[:, number] - shares[:, number]
            theme.hint(axes.fill_between(x, lower, tops[:, number], **theme.area(style)), label)
        _set_scale(axes, "x", Scale("batch", amount))
        ends = [(float(x[-1]), float(end)) for end in tops[-1] - shares[-1] / 2]
        _label_bands(figure, axes, bands, shares.mean(axis=0), ends)
        return _plot(name, title, caption, figure)


def stacked_columns(
    name: str, title: str, caption: str, groups: Sequence[tuple[str, Floats]], bands: Bands
) -> Plot:
    """Groups of neighbouring batches, one column a batch, each group under its first number."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    slot = 1 + max(5, *(len(shares) for _, shares in groups))
    lefts = np.concatenate([slot * n + np.arange(len(s)) for n, (_, s) in enumerate(groups)])
    shares = np.vstack([shares for _, shares in groups])
    upper = np.cumsum(shares, axis=1)
    with theme.style():
        figure, axes = _canvas(title, 400.0, left=62.0, right=250.0)
        for number, (label, style) in enumerate(bands):
            top, low = upper[:, number], upper[:, number] - shares[:, number]
            corners = ((0, low), (1, low), (1, top), (0, top), (0, low))
            points = np.stack([np.stack([lefts + dx, y], axis=1) for dx, y in corners], axis=1)
            points = points[top - low > 1e-4]
            # One path for all columns of a band keeps the file small.
            codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(points)
            patch = PathPatch(Path(points.reshape(-1, 2), codes), **theme.area(style))
            theme.hint(axes.add_artist(patch), label)
        _set_scale(axes, "x", Scale("first batch of each group", amount))
        axes.set_xlim(-0.5, slot * len(groups) - 0.5)
        shown = range(0, len(groups), -(-len(groups) // 12))
        middles = [slot * n + len(groups[n][1]) / 2 for n in shown]
        axes.set_xticks(middles, [groups[n][0] for n in shown])
        axes.tick_params(axis="x", length=0, pad=8)
        _label_bands(figure, axes, bands, shares.mean(axis=0), None)
        return _plot(name, title, caption, figure)


def nothing(name: str, title: str, why: str) -> Plot:
    """A figure that says why there is none."""
    with theme.style():
        figure = theme.figure(_WIDTH, 70)
        _text(figure, 0, 58, title, fontsize=_HEAD, fontweight="bold")
        _text(figure, 0, 26, f"Nothing to show: {why}")
        return Plot(name, title, why, theme.svg(figure, title, name), empty=True)


def _plot(name: str, title: str, caption: str, figure: Figure) -> Plot:
    return Plot(name, title, caption, theme.svg(figure, title, name))


# -- canvases and axes -----------------------------------------------------------------------------


def _canvas(
    title: str, height: float, left: float, right: float, top: float = _TOP
) -> tuple[Figure, Axes]:
    figure = theme.figure(_WIDTH, height)
    width, inner = _WIDTH - left - right, height - top - _BOTTOM
    axes = figure.add_axes(
        (left / _WIDTH, _BOTTOM / height, width / _WIDTH, inner / height), frame_on=True
    )
    axes.patch.set_visible(False)
    axes.margins(0)
    _text(figure, 0, height - 12, title, fontsize=_HEAD, fontweight="bold")
    return figure, axes


def _row_canvas(title: str, rows: Sequence[Bar], step: float, keys: int) -> tuple[Figure, Axes]:
    """A canvas with a row of that height for each bar, and room for keys above them."""
    labels = [theme.printable(row.label, 36) for row in rows]
    top = 36.0 + 20 * -(-keys // _KEYS)
    left = max(7.0 * max(map(len, labels)) + 14, 80.0)
    figure, axes = _canvas(title, top + step * len(rows) + _BOTTOM, left, 150.0, top)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), labels)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.tick_params(axis="y", labelcolor=theme.INK)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        theme.hint(label, row.label)
        label.set_fontweight("normal" if row.values else "bold")
    return figure, axes


def _set_scale(axes: Axes, which: Literal["x", "y"], scale: Scale) -> None:
    """Ticks in words at round values, once everything is drawn."""
    from matplotlib import ticker

    axis, low, high = (
        (axes.xaxis, *axes.get_xlim()) if which == "x" else (axes.yaxis, *axes.get_ylim())
    )
    locator: ticker.Locator = ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
    if scale.kind == "nines":
        axes.set_yscale("function", functions=(_nines, lambda nines: 1 - 10.0**-nines))
        axes.set_ylim(0.0, high)
        shares = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
        locator = ticker.FixedLocator([value for value in shares if value <= high])
    elif scale.kind == "log":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high / low >= 8:
            locator = ticker.LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,), numticks=8)
    elif scale.from_zero:
        (axes.set_xlim if which == "x" else axes.set_ylim)(min(low, 0.0), high + 0.06 * abs(high))
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: scale.words(value)))
    axis.set_label_text(scale.title)
    if which == "y":
        axis.set_label_coords((14 - axes.bbox.x0) / axes.bbox.width, 0.5)


def _nines(value: Any) -> Any:
    return -np.log10(np.maximum(1 - np.asarray(value), 1e-9))


# -- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A label of one or more lines of text, behind a sample of what it names."""

    words: Sequence[str]
    look: dict[str, Any]  #: of a line, or with "facecolor" of an area


def _unmarked(line: Line) -> dict[str, Any]:
    return {"markersize": 7} if line.marks else {"marker": ""}


def _label(
    figure: Figure,
    axes: Axes,
    keys: Sequence[_Key],
    ends: Sequence[tuple[float, float]] | None,
    joined: bool = True,
) -> None:
    """Labels on the right, near to the ends of what they name; without ends, from the top."""
    right, bottom, top = axes.bbox.x1, axes.bbox.y0, axes.bbox.y1
    places = [(right, top)] * len(keys) if ends is None else axes.transData.transform(ends)
    order = sorted(range(len(keys)), key=lambda i: -places[i][1])
    sizes = [_ROW * len(keys[i].words) for i in order]
    wanted = [top - places[i][1] - (_ROW / 2 if ends else 0.0) for i in order]
    downs = _spread(wanted, sizes, -8.0, top - bottom + 12)
    for i, down in zip(order, downs, strict=True):
        y, (end, level), look = top - down - _ROW / 2, places[i], keys[i].look
        if ends is not None and joined:
            dotted = {"color": theme.RULE, "linestyle": (0, (1, 3)), "linewidth": 1}
            _line(figure, [end, right], [level, level], **dotted)
            _line(figure, [right, right + 8], [level, y], color=theme.SOFT, linewidth=0.6)
        if "facecolor" in look:
            _box(figure, right + 10, y, look)
        else:
            _line(figure, [right + 8, right + 19, right + 30], [y] * 3, markevery=[1], **look)
        for number, words in enumerate(keys[i].words):
            soft = {"color": theme.SOFT, "fontsize": _SMALL} if number else {}
            _text(figure, right + 34, y - number * _ROW, words, **soft)


def _label_bands(
    figure: Figure,
    axes: Axes,
    bands: Bands,
    mean: Floats,
    ends: Sequence[tuple[float, float]] | None,
) -> None:
    axes.set_ylim(0, 1)
    _set_scale(axes, "y", Scale("share of samples", share))
    keys = [
        _Key([f"{theme.printable(label, 24)}  {share(float(part), 1)}"], theme.area(style))
        for (label, style), part in zip(bands, mean, strict=True)
    ]
    middles = [(0.0, float(y)) for y in np.cumsum(mean) - mean / 2]
    _label(figure, axes, keys, ends or middles, joined=ends is not None)


def _spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> Floats:
    """Places of labels near to where they are wanted, in that order, none over another.

    >>> _spread([42, 44, 82], [16, 16, 16], 0, 200)
    array([35., 51., 82.])
    """
    offsets = np.concatenate([[0.0], np.cumsum(sizes)])
    free = np.asarray(wanted, float) - offsets[:-1]  # places if labels took up no room
    # Pushed down where they overlap, and pushed up: halfway lies each group around its middle.
    down, up = np.maximum.accumulate(free), np.minimum.accumulate(free[::-1])[::-1]
    fitted = np.clip((down + up) / 2, low, max(high - offsets[-1], low))
    places: Floats = fitted + offsets[:-1]
    return places


def _marks(axes: Axes, values: Sequence[float | None]) -> Any:
    """An upright line in each row that has a mark."""
    look: dict[str, Any] = {"marker": "|", "markersize": 13, "markeredgewidth": 2, "zorder": 3}
    places = np.arange(len(values))
    return axes.plot(np.array(values, float), places, color=theme.INK, linestyle="none", **look)[0]


def _draw_keys(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    if len(handles) > 1:
        # A space, as matplotlib leaves out labels that begin with an underscore.
        words = [theme.printable(f" {label}", 30) for label in labels]
        place = (-axes.bbox.x0 / axes.bbox.width, 1 + 2 / axes.bbox.height)
        look: dict[str, Any] = {"frameon": False, "borderpad": 0, "handlelength": 1.5}
        axes.legend(handles, words, ncols=_KEYS, loc="lower left", bbox_to_anchor=place, **look)


def _text(figure: Figure, x: float, y: float, words: str, **look: Any) -> None:
    figure.text(x, y, theme.printable(words), **{"va": "center"} | _pixels() | look)


def _line(figure: Figure, x: Sequence[float], y: Sequence[float], **look: Any) -> None:
    from matplotlib.lines import Line2D

    figure.add_artist(Line2D(x, y, **{"linewidth": 1.8} | _pixels() | look))


def _box(figure: Figure, x: float, y: float, look: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    figure.add_artist(Rectangle((x, y - 6), 18, 12, **_pixels() | look))


def _pixels() -> dict[str, Any]:
    from matplotlib.transforms import IdentityTransform

    return {"transform": IdentityTransform()}
