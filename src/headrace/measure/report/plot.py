"""A picture with what it says, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.measure.report.svg import Drawing

__all__ = ["Plot"]


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of a report."""

    #: Names its file and the figure in the page.
    name: str
    title: str
    #: None where the runs have nothing to show.
    drawing: Drawing | None
    #: How to read it, or why there is nothing to read.
    caption: str

    def file(self) -> str:
        """The figure as an SVG file; one without a picture says why."""
        drawing = self.drawing
        if drawing is None:
            drawing = Drawing(self.name, 940, 90, self.title)
            drawing.text(0, 18, self.title, "head")
            drawing.text(0, 50, f"Nothing to show: {self.caption}")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawing.render(standalone=True)}\n'
