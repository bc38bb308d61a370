"""A small drawing of our own: shapes and text as SVG, every word from outside escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape

from headrace.measure.report.look import COLOURS, DASHES, HATCHES, SVG_STYLE, VARIABLES

__all__ = ["Drawing", "escape", "shortened", "wide"]

Point = tuple[float, float]
#: Mean width of a letter, as a share of the font size. Estimated on the generous side, as fonts
#: differ from browser to browser.
_LETTER = 0.58
#: Paper around a picture that stands alone.
_EDGE = 14


def escape(text: str, keep: str = "") -> str:
    """Text made safe for HTML and XML, in elements and in attributes.

    What no document may hold (control characters, half surrogates) or what rearranges the text
    around it (marks of writing direction) becomes a replacement sign; `keep` lists exceptions.

    >>> escape('<b a="x">&\\x00')
    '&lt;b a=&quot;x&quot;&gt;&amp;�'
    """
    shown = "".join(
        c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return _escape(shown, quote=True)


def shortened(text: str, letters: int) -> str:
    """Text of at most that many letters, cut in the middle: names differ at both ends.

    >>> shortened("columbia_cairlab_pusht_real", 15)
    'columbi…ht_real'
    """
    if len(text) <= letters:
        return text
    half = (letters - 1) // 2
    return text[: letters - 1 - half] + "…" + text[len(text) - half :]


def wide(text: str, size: float = 12) -> float:
    """About how wide a text is."""
    return len(text) * size * _LETTER


class Drawing:
    """A picture in the making.

    >>> drawing = Drawing("demo", 100, 50, "Nothing yet")
    >>> drawing.text(10, 20, "a < b")
    >>> "a &lt; b" in drawing.render()
    True
    """

    def __init__(self, name: str, width: float, height: float, title: str) -> None:
        self.name = name
        self.width = width
        self.height = height
        self.title = title
        self._parts: list[str] = []
        self._patterns: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Drawing {self.name}: {self.width:g} x {self.height:g}, {len(self._parts)} shapes>"

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "", full: str = ""
    ) -> None:
        """Words at a place; `full` is shown when a pointer rests on them."""
        attributes = f' class="{kind}"' if kind else ""
        attributes += f' text-anchor="{anchor}"' if anchor else ""
        hint = f"<title>{escape(full)}</title>" if full and full != text else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{attributes}>{hint}{escape(text)}</text>')

    def turned(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Words that read upwards, centred."""
        self._parts.append(
            f'<text class="{kind}" text-anchor="middle" '
            f'transform="translate({_n(x)} {_n(y)}) rotate(-90)">{escape(text)}</text>'
        )

    def rule(self, start: Point, end: Point, kind: str = "rule", dash: str = "") -> None:
        """A straight thin line."""
        self._parts.append(
            f'<path class="{kind}" d="M{_n(start[0])},{_n(start[1])}L{_n(end[0])},{_n(end[1])}"'
            f'{_dashed(dash)} fill="none"/>'
        )

    def line(self, points: Iterable[Point], style: int, hint: str = "", width: float = 0) -> None:
        """A line through points in the colour and the dashes of a style."""
        dash = _dashed(DASHES[style % len(DASHES)])
        size = f' style="stroke-width:{_n(width)}"' if width else ""
        self._parts.append(
            f'<path class="line s{style % COLOURS}" d="{_path(points)}"{dash}{size}>'
            f"<title>{escape(hint)}</title></path>"
        )

    def area(self, points: Iterable[Point], fill: str, hint: str = "") -> None:
        """A closed shape; `fill` as `hatch` gave it."""
        self._parts.append(
            f'<path class="edge" stroke-width=".6" d="{_path(points)}Z" fill="{fill}">'
            f"<title>{escape(hint)}</title></path>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, hint: str = ""
    ) -> None:
        """An upright rectangle."""
        self._parts.append(
            f'<rect class="edge" stroke-width=".6" x="{_n(x)}" y="{_n(y)}" '
            f'width="{_n(max(width, 0))}" height="{_n(max(height, 0))}" fill="{fill}">'
            f"<title>{escape(hint)}</title></rect>"
        )

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """An empty rectangle in ink."""
        self._parts.append(
            f'<rect class="inkline" stroke-width="1" fill="none" x="{_n(x)}" y="{_n(y)}" '
            f'width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"/>'
        )

    def marker(self, x: float, y: float, style: int, hint: str = "", size: float = 4) -> None:
        """A small sign whose shape, not only its colour, tells the style."""
        shapes: Sequence[Sequence[Point]] = (
            ((-1, -1), (1, -1), (1, 1), (-1, 1)),
            ((0, -1.3), (1.2, 1), (-1.2, 1)),
            ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
            ((0, 1.3), (1.2, -1), (-1.2, -1)),
            tuple((a * s, b * t) for s, t in _QUARTERS for a, b in _cross(s * t)),
        )
        title = f"<title>{escape(hint)}</title>"
        colour = f"f{style % COLOURS} edge"
        kind = style % (len(shapes) + 1)
        if kind == 0:
            self._parts.append(
                f'<circle class="{colour}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}">'
                f"{title}</circle>"
            )
        else:
            corners = [(x + size * dx, y + size * dy) for dx, dy in shapes[kind - 1]]
            self._parts.append(f'<path class="{colour}" d="{_path(corners)}Z">{title}</path>')

    def hatch(self, style: int | None) -> str:
        """The fill of a band: a colour and a hatch for each style; None is light grey."""
        if style is None:
            colour, faint, (data, stroke) = COLOURS - 1, ' opacity=".3"', ("", 0.0)
        else:
            colour, faint, (data, stroke) = style % (COLOURS - 1), "", HATCHES[style % len(HATCHES)]
        # The figure's own name keeps patterns of different pictures in one page apart.
        name = f"{self.name}-{'rest' if style is None else style}"
        lines = (
            f'<path class="edge" stroke-width="{stroke:g}" stroke-linecap="round" fill="none" '
            f'd="{data}"/>'
        )
        self._patterns[name] = (
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect class="f{colour}"{faint} width="8" height="8"/>{lines if data else ""}'
            "</pattern>"
        )
        return f"url(#{name})"

    def render(self, standalone: bool = False) -> str:
        """The picture as an element for a page, or as a file of its own."""
        style = f"<style>{VARIABLES}{SVG_STYLE}</style>" if standalone else ""
        edge = _EDGE if standalone else 0
        size = f'width="{_n(self.width + 2 * edge)}" height="{_n(self.height + 2 * edge)}"'
        paper = f'<rect class="paper" x="{-edge}" y="{-edge}" {size}/>' if standalone else ""
        space = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
        defs = f"<defs>{''.join(self._patterns.values())}</defs>" if self._patterns else ""
        title = escape(self.title)
        return (
            f'<svg{space} class="plot" role="img" aria-label="{title}" '
            f'viewBox="{-edge} {-edge} {_n(self.width + 2 * edge)} {_n(self.height + 2 * edge)}">'
            f"<title>{title}</title>{style}{defs}{paper}{''.join(self._parts)}</svg>"
        )


_QUARTERS = ((1, -1), (1, 1), (-1, 1), (-1, -1))


def _cross(turn: int) -> tuple[Point, ...]:
    """A quarter of a plus sign, walked so that the four quarters make one outline."""
    corner = ((0.45, 1.3), (0.45, 0.45), (1.3, 0.45))
    return corner if turn < 0 else corner[::-1]


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """A coordinate to a tenth of a unit: finer is not seen."""
    return f"{round(float(value), 1):g}"
