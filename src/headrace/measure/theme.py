"""The look of every figure: colours for light and dark, the matplotlib style, SVG and PNG output.

Used by the report, the plots of studies, the contact sheet and the pictures of recipes. Importing
this module does not import matplotlib; `style` and what follows it do, and need the extra `plots`.

    from headrace.measure import theme

    with theme.style():
        figure = theme.figure(940, 330)
        axes = figure.add_axes((0.1, 0.2, 0.8, 0.7))
        axes.plot(x, y, **theme.line(0), label=theme.printable(name))
        theme.save(figure, Path("plot.svg"), title="Loss")  # or .png, always on light paper

An SVG has its colours as CSS variables, so it follows the light or dark setting of the browser, and
its text as text. Figures have no title of matplotlib's own unless the caller draws one.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from headrace.errors import UsageError
from headrace.files import atomic_write, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "CSS",
    "DASHES",
    "INK",
    "MARKERS",
    "PAPER",
    "RULE",
    "SOFT",
    "Svg",
    "area",
    "available",
    "figure",
    "hint",
    "line",
    "printable",
    "require",
    "save",
    "style",
    "svg",
]


@dataclass(frozen=True, slots=True)
class _Scheme:
    ink: str
    #: Text that matters less, and axes.
    soft: str
    #: Grid lines.
    rule: str
    paper: str
    colours: tuple[str, ...]


# Colours that people with colour blindness can tell apart, too.
_LIGHT = _Scheme(
    *("#1c2128", "#59636e", "#d5dae0", "#ffffff"),
    ("#0b6bb0", "#c2510c", "#00805c", "#a8467f", "#946800", "#6650a8", "#4d7510", "#5b6470"),
)
_DARK = _Scheme(
    *("#e8ebef", "#a3adb8", "#3a424c", "#14181d"),
    ("#62b0ee", "#f2935a", "#40cba0", "#e79dca", "#e3b341", "#b3a2ee", "#a5d05f", "#b3bcc7"),
)
#: What figures are drawn in. `svg` turns these into variables; other colours stay as they are.
INK, SOFT, RULE, PAPER, COLOURS = (
    *(_LIGHT.ink, _LIGHT.soft, _LIGHT.rule, _LIGHT.paper),
    _LIGHT.colours,
)
#: Seven, as there are eight colours and six markers: lines that share one of these differ in
#: another, so they can be told apart without colour.
DASHES: tuple[Any, ...] = (
    "-",
    *((0, dashes) for dashes in ((5, 2.5), (1, 1.5), (7, 2, 1, 2), (3, 1, 1, 1, 1, 1), (9, 3))),
    (0, (3.5, 1.2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")
#: Drawn in paper colour over areas, so that they can be told apart without colour.
_HATCHES = ("", "//", "--", r"\\", "||", "xx", "++", "////", "----", r"\\\\", "||||", "xxxx")


def _variables(scheme: _Scheme) -> str:
    named = {"ink": scheme.ink, "soft": scheme.soft, "rule": scheme.rule, "paper": scheme.paper}
    named |= {f"c{number}": colour for number, colour in enumerate(scheme.colours)}
    return ";".join(f"--{name}:{colour}" for name, colour in named.items())


_VARIABLE = {
    value: name for name, value in (item[2:].split(":") for item in _variables(_LIGHT).split(";"))
}
#: Variables and text of figures, for a page or a file of its own. Printed pages are light.
CSS = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    f"@media print{{:root{{color-scheme:light;{_variables(_LIGHT)}}}}}"
    ".plot *{stroke-linejoin:round;stroke-linecap:butt}"
    ".plot text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;"
    # A halo keeps words readable where lines run under them.
    "paint-order:stroke;stroke-width:3px;stroke-linejoin:round;stroke:#fff;stroke:var(--paper)}"
)
#: Paper around a figure in a file of its own.
_EDGE = 14


def available(*modules: str) -> bool:
    """Whether matplotlib and the given modules are installed, without importing them."""
    return not _missing(modules)


def require(feature: str, *modules: str) -> None:
    """Raise an error that names the feature and the remedy, unless `available`."""
    if missing := _missing(modules):
        raise UsageError(
            f"{feature} needs {' and '.join(missing)}", remedy="pip install 'headrace[plots]'"
        )


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [name for name in ("matplotlib", *modules) if find_spec(name) is None]


@contextmanager
def style() -> Iterator[None]:
    """The settings to draw and save figures under, whatever the user's matplotlibrc says."""
    require("Drawing figures")
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # Browsers have the glyphs that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "axes.axisbelow": True,
                "axes.edgecolor": SOFT,
                "axes.facecolor": "none",
                "axes.grid": True,
                "axes.grid.axis": "y",
                "axes.labelcolor": SOFT,
                "axes.labelpad": 6,
                "axes.labelsize": 12,
                "axes.linewidth": 1,
                "axes.spines.left": False,
                "axes.spines.right": False,
                "axes.spines.top": False,
                "axes.unicode_minus": False,
                "figure.dpi": 72,
                "figure.facecolor": PAPER,
                "font.size": 12,
                "grid.color": RULE,
                "grid.linewidth": 1,
                "hatch.linewidth": 1.2,
                "lines.linewidth": 1.8,
                "lines.solid_capstyle": "butt",
                "lines.solid_joinstyle": "round",
                "patch.linewidth": 0.6,
                "savefig.dpi": 144,
                "svg.fonttype": "none",
                "svg.hashsalt": "headrace",
                "text.color": INK,
                "text.parse_math": False,
                "xtick.color": SOFT,
                "xtick.major.size": 5,
                "ytick.color": SOFT,
                "ytick.major.pad": 8,
                "ytick.major.size": 0,
            }
        )
        yield


def figure(width: float, height: float) -> Figure:
    """An empty figure of that many CSS pixels, without pyplot and its global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def line(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the line with that number, as keywords of `plot`."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
        "markersize": 8,
    }


def area(number: int | None) -> dict[str, Any]:
    """Colour and hatch of the area with that number, as keywords of a patch; None is the rest."""
    if number is None:
        return {"facecolor": RULE, "edgecolor": PAPER}
    # The last colour is a grey, too near to that of the rest.
    colour = COLOURS[number % (len(COLOURS) - 1)]
    return {
        "facecolor": colour,
        "edgecolor": PAPER,
        "hatch": _HATCHES[number % len(_HATCHES)] or None,
    }


def printable(text: str, letters: int | None = None) -> str:
    """Text that any document may hold, cut in the middle to a length: names differ at both ends.

    Control characters, half surrogates and marks of writing direction become a replacement sign.

    >>> printable("columbia_cairlab_pusht_real", 15), printable("a\\x00\\u202e$b$")
    ('columbi…ht_real', 'a��$b$')
    """
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    if letters is None or len(shown) <= letters:
        return shown
    half = (letters - 1) // 2
    return shown[: letters - 1 - half] + "…" + shown[len(shown) - half :]


def hint(artist: Any, text: str) -> None:
    """Words that a browser shows when the pointer rests on an artist."""
    artist.set_gid(f"hint:{printable(text)}")


def save(figure: Figure, path: Path, *, title: str = "") -> None:
    """Write a figure to an .svg file, or to a picture such as .png at twice its size."""
    if path.suffix == ".svg":
        atomic_write(path, svg(figure, title).file())
    else:
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix.lstrip("."))


@dataclass(frozen=True, slots=True)
class Svg:
    """A figure as SVG text."""

    title: str
    width: float
    height: float
    body: str

    def element(self) -> str:
        """For a page whose style has `CSS`."""
        return self._element(0)

    def file(self) -> str:
        """A file of its own."""
        size = f'width="{self.width + 2 * _EDGE:g}" height="{self.height + 2 * _EDGE:g}"'
        paper = f'<rect style="fill:{PAPER};fill:var(--paper)" x="{-_EDGE}" y="{-_EDGE}" {size}/>'
        more = f' xmlns="http://www.w3.org/2000/svg" {size}'
        text = self._element(_EDGE, more, f"<style>{CSS}</style>{paper}")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'

    def _element(self, edge: float, more: str = "", before: str = "") -> str:
        title = escape(printable(self.title), quote=True)
        size = f"{self.width + 2 * edge:g} {self.height + 2 * edge:g}"
        return (
            f'<svg{more} class="plot" role="img" aria-label="{title}" '
            f'viewBox="{-edge:g} {-edge:g} {size}"><title>{title}</title>{before}{self.body}</svg>'
        )


def svg(figure: Figure, title: str, name: str = "figure") -> Svg:
    """A figure as SVG; a name that is unique within a page keeps its references apart."""
    import matplotlib

    buffer = io.BytesIO()
    figure.patch.set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    _clean(root)
    body = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    return Svg(title, width, height, body)


def _clean(root: ElementTree.Element) -> None:
    """Make what matplotlib wrote small and free of its own style."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.text = node.text if node.text and node.text.strip() else None
        node.tail = None
        attributes = node.attrib
        identity = attributes.get("id", "")
        if identity.startswith("hint:"):
            title = ElementTree.Element("title")
            title.text = identity.removeprefix("hint:")
            node.insert(0, title)
        if node.tag == "g":
            attributes.pop("id", None)
        if target := attributes.pop("{http://www.w3.org/1999/xlink}href", None):
            attributes["href"] = target
        if attributes.get("transform", "").startswith("rotate(-0 "):
            del attributes["transform"]
        if "d" in attributes:
            attributes["d"] = _short(attributes["d"])
        if fill := attributes.pop("fill", None):  # the paper of a hatch
            attributes["style"] = f"fill: {fill}"
        if declared := attributes.get("style"):
            attributes["style"] = ";".join(_themed(declared))


def _themed(declarations: str) -> Iterator[str]:
    for declaration in declarations.split("; "):
        name, _, value = declaration.partition(": ")
        if name != "font-family":
            yield f"{name}:{value}"
            # Viewers that do not know CSS variables skip this one and keep the colour.
            if value in _VARIABLE:
                yield f"{name}:var(--{_VARIABLE[value]})"


def _short(path: str) -> str:
    """Path data to a tenth of a pixel, as finer is not visible; a line needs to be named once."""
    rounded = re.sub(r"\d+\.\d+", lambda number: f"{round(float(number[0]), 1):g}", path)
    words, shown, last = rounded.split(), list[str](), ""
    for word in words:
        if word.isalpha():
            if word == last == "L":
                continue
            last = word
        shown.append(word)
    return " ".join(shown)
