"""What a person sees while a catalog is built."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["BuildProgress", "ProgressBar", "Quiet"]


class BuildProgress(Protocol):
    """Receives what happens during a build."""

    def begin(self, title: str, total_bytes: int) -> None:
        """A dataset's shards of so many bytes will be scanned."""

    def advance(self, done_bytes: int, steps: int) -> None:
        """So many bytes and steps have been scanned of this dataset."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Quiet:
    """Says nothing but keeps the figures of everything built."""

    def __init__(self) -> None:
        self.steps = 0
        self.bytes = 0
        self.notes: list[str] = []
        self._before = (0, 0)

    def begin(self, title: str, total_bytes: int) -> None:  # noqa: ARG002
        self._before = (self.bytes, self.steps)

    def advance(self, done_bytes: int, steps: int) -> None:
        self.bytes, self.steps = self._before[0] + done_bytes, self._before[1] + steps

    def note(self, text: str) -> None:
        self.notes.append(text)


class ProgressBar(Quiet):
    """A bar on stderr with the rate and the time left; nothing when no person watches."""

    def __init__(self, verb: str = "indexing", what: str = "frames") -> None:
        super().__init__()
        self._verb, self._what = verb, what
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def begin(self, title: str, total_bytes: int) -> None:
        super().begin(title, total_bytes)
        self._started = time.monotonic()
        if self._bar is None and sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(f"{self._verb} {title}", total=total_bytes, rate="")

    def advance(self, done_bytes: int, steps: int) -> None:
        super().advance(done_bytes, steps)
        if self._bar is not None and self._task is not None:
            rate = steps / max(1e-3, time.monotonic() - self._started)
            self._bar.update(self._task, completed=done_bytes, rate=f"{rate:,.0f} {self._what}/s")

    def note(self, text: str) -> None:
        super().note(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr)


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    return Progress(*columns, console=Console(stderr=True), transient=True)
