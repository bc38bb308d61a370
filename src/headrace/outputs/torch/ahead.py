"""Batches on their way to a device, one ahead of the consumer.

A copy goes on after it was ordered, so the host's batch is held, and with it its slot, until the
copy says that it is done. The next copy is ordered when a batch is handed out, but only if the host
has that batch ready: the first batch never waits for the second.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.loader import Batch
from headrace.outputs.torch.batch import TorchBatch

__all__ = ["Ahead", "Sent", "Source"]


class Source(Protocol):
    """Batches of the host: a loader, or a validation pass."""

    @property
    def ready(self) -> int:
        """Batches that `next` would give without a wait."""

    def __next__(self) -> Batch: ...


class Sent(Protocol):
    """A batch that is being copied."""

    def done(self) -> bool:
        """Whether the copy is over, so that the host's memory may change."""

    def wait(self, *, held_up: bool = True) -> None:
        """Return when it is over; whether that holds the consumer up."""

    def take(self) -> TorchBatch:
        """The batch, for work that the caller queues from now on; called once."""


class Ahead(Iterator[TorchBatch]):
    """Hands out the batches of a source, each sent to the device before it is asked for."""

    def __init__(self, source: Source, send: Callable[[Batch], Sent]) -> None:
        self._source = source
        self._send = send
        self._taken: Batch | None = None  # from the source, and not sent yet
        self._next: Sent | None = None
        self._copying: list[tuple[Sent, Batch]] = []  # one at most
        # Memory must not be reused under a running copy, not even when everything is let go.
        self._finalizer = weakref.finalize(self, _finish, self._copying)

    @property
    def ahead(self) -> int:
        """Batches taken from the source that the consumer has not had."""
        return (self._taken is not None) + (self._next is not None)

    def __next__(self) -> TorchBatch:
        if self._copying and self._copying[0][0].done():
            self._copying.clear()
        sent = self._next or self._order()
        self._next = None
        # What goes wrong with the next batch belongs to the next call, which tries it again.
        with contextlib.suppress(Exception):
            if self._source.ready:
                self._next = self._order()
        return sent.take()

    def close(self) -> None:
        """Forget the batch ahead, and return when no copy runs any more."""
        self._taken = self._next = None
        _finish(self._copying)

    def _order(self) -> Sent:
        # One copy at a time: its slot is back before we wait for a batch that may need it.
        _finish(self._copying)
        if self._taken is None:
            self._taken = next(self._source)
        sent = self._send(self._taken)
        self._copying.append((sent, self._taken))
        self._taken = None
        return sent


def _finish(copying: list[tuple[Sent, Batch]]) -> None:
    while copying:
        copying[0][0].wait()
        copying.pop()
