"""What all rivals do alike: wrap their iterator into batches, and end it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config.typed import nearest
from headrace.errors import UsageError
from headrace.loader import Batch
from headrace.measure.job import Job

__all__ = ["Delivery", "checked_options", "child_processes"]


def child_processes() -> set[int]:
    """Numbers of the processes that this one has started and that still run.

    Without Python's resource tracker, which is started once and stays as long as the interpreter.
    """
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            numbers = (task / "children").read_text().split()
        except OSError:  # a thread that has ended since
            continue
        found.update(number for number in numbers if not _is_tracker(number))
    return {int(number) for number in found}


def _is_tracker(number: str) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:  # gone
        return True


def checked_options(job: Job, backend: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options over the backend's defaults; `UsageError` if it has no such option."""
    for name in job.options:
        if name not in known:
            raise UsageError(
                f"the backend {backend!r} has no option {name!r}",
                remedy=f"{nearest(name, known)}There are {', '.join(known)}",
            )
    return {**known, **job.options}


class Delivery:
    """A framework's iterator as an opened backend.

    `start` begins an endless iteration over dicts with the fields of a `Batch`. It is called at the
    first batch, and the iterator is let go when the delivery is closed.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        start: Callable[[], Iterator[dict[str, Any]]],
        **figures: Any,
    ) -> None:
        self.names = names
        self._start = start
        self._figures = figures
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._closed = False
        self._drawn = 0
        self._before = child_processes()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        if self._iterator is None:
            self._iterator = self._start()
        fields = next(self._iterator)
        count = len(fields["frames"])
        # Where a backend does not number its draws, they are numbered as they come.
        draws = fields.pop("draws", None)
        if draws is None:
            draws = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        return Batch(names=self.names, draws=draws, **fields)

    def figures(self) -> Mapping[str, Any]:
        """Its settings, and the processes that work for it now."""
        return {**self._figures, "processes": sorted(child_processes() - self._before)}

    def close(self) -> None:
        """End the iteration, and with it the workers."""
        self._closed = True
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
        del iterator
        gc.collect()  # worker processes end with their iterator, which may be in a cycle
