"""One line on stderr that says what runs now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.measure.bench.run import Watch

__all__ = ["LiveLine"]


class LiveLine:
    """The line while it is entered; nothing when no person watches."""

    def __init__(self, *, quiet: bool, step: bool) -> None:
        self._shown: Any = None
        self._quiet = quiet or not sys.stderr.isatty()
        self._step = step  # without a step a loader that is asked again at once always waits

    def __enter__(self) -> Watch:
        if not self._quiet:
            from rich.console import Console

            self._shown = Console(stderr=True).status("starting")
            self._shown.start()
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def _watch(self, title: str, sight: Any) -> None:
        if self._shown is not None:
            from rich.markup import escape

            self._shown.update(escape(words(title, sight, step=self._step)))


def words(title: str, sight: Any, *, step: bool) -> str:
    """What is seen of a run, in one line."""
    rate = f", {sight.samples_per_s:,.0f} samples/s" if sight.samples_per_s else ""
    if rate and step:
        rate += f", {sight.stalled:.0%} stalled"
    return f"{title}: {sight.phase}{rate}, {sight.anonymous / 1e6:,.0f} MB"
