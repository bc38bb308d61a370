"""A picture with what it says, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.measure.report.look import COLOURS, DASHES
from headrace.measure.report.svg import Drawing
from headrace.measure.runs import Run

__all__ = ["Plot", "run_styles"]


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


def run_styles(runs: Sequence[Run]) -> list[int]:
    """A style for each run: those of one backend share its colour and differ in dashes."""
    backends = list(dict.fromkeys(run.backend for run in runs))
    if len(backends) in (1, len(runs)):
        return list(range(len(runs)))
    period = COLOURS * len(DASHES)  # these have no common divisor: every combination is there
    wanted = [(backends.index(r.backend) % COLOURS, n % len(DASHES)) for n, r in enumerate(runs)]
    found = {(style % COLOURS, style % len(DASHES)): style for style in range(period)}
    return [found[pair] for pair in wanted]
