"""Tables: for the page, and as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.measure.report.svg import escape

__all__ = ["Table", "aligned", "html_table", "nothing", "one_line"]

#: Letters of a line of text, and of a name in a column.
_LINE, _CELL = 100, 72


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in words, under a title."""

    title: str
    #: How to read it, or why there is nothing to read.
    caption: str
    heads: tuple[str, ...]
    #: The first cell of a row names it.
    rows: tuple[tuple[str, ...], ...]
    #: Heads of the other columns that hold words and not figures.
    words: tuple[str, ...] = ()

    def html(self) -> str:
        """The table under a heading."""
        if not self.rows:
            return nothing(self.title, self.caption)
        rows = []
        for name, *cells in self.rows:
            marked = "".join(
                f"<td{_kind(head in self.words)}>{escape(cell)}</td>"
                for head, cell in zip(self.heads[1:], cells, strict=True)
            )
            rows.append(f'<tr><th scope="row">{escape(name)}</th>{marked}</tr>')
        words = (self.heads[0], *self.words)
        # A caption is as narrow as its table: sentences stand above it.
        table = html_table(self.heads, rows, "", words, "narrow", self.title)
        return f'<h3>{escape(self.title)}</h3><p class="soft">{escape(self.caption)}</p>{table}'

    def text(self) -> str:
        """The same for a terminal or a text file."""
        lines = [self.title, *textwrap.wrap(self.caption, _LINE)]
        if self.rows:
            lines += ["", *aligned(self.heads, self.rows, self.words)]
        return "\n".join(lines) + "\n"


def html_table(
    heads: Sequence[str],
    rows: Sequence[str],
    caption: str,
    words: Sequence[str],
    kind: str = "",
    label: str = "",
) -> str:
    """A table of finished rows; the columns in `words` are aligned to the left.

    `label` names it for screen readers where there is no caption.
    """
    marked = "".join(f'<th scope="col"{_kind(head in words)}>{escape(head)}</th>' for head in heads)
    named = f' aria-label="{escape(label)}"' if label else ""
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="{kind}"{named}>{above}'
        f"<thead><tr>{marked}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def aligned(
    heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()
) -> list[str]:
    """Lines of text: the first column and those in `words` to the left, figures to the right.

    >>> print(*aligned(("dataset", "batches"), [("bridge", "7"), ("rt1", "12")]), sep="\\n")
    dataset  batches
    bridge         7
    rt1           12
    """
    cells = [[one_line(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [head in (heads[0], *words) for head in heads]
    return [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in cells
    ]


def one_line(text: str) -> str:
    """Text from the data that cannot begin a line of its own."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= _CELL else shown[: _CELL - 1] + "…"


def nothing(title: str, why: str) -> str:
    """What stands in the page in place of a table or figure."""
    return f'<p class="soft">{escape(title)}: nothing to show, {escape(why)}.</p>'


def _kind(words: bool) -> str:
    return ' class="words"' if words else ""
