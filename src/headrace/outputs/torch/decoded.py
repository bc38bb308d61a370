"""Batches that a device decodes, ahead of the consumer, on a thread of the engine's room.

Ordering the decoding of a batch takes its thread as long as the device takes for it, so the
consumer's own thread must not do it. One batch waits ready while the next is decoded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

from headrace.engine.feeders import Feeders
from headrace.loader import Batch
from headrace.outputs.torch.ahead import Sent
from headrace.outputs.torch.batch import TorchBatch

__all__ = ["Decoded"]

_FOREVER = 3600.0


class Decoded(Iterator[TorchBatch]):
    """Takes batches, has them sent, and hands them out in order.

    `source()` gives what takes a batch, or None when that is gone: the thread must not keep alive
    what its consumer has let go.
    """

    about: Batch  #: what was handed out last, without its frames

    def __init__(
        self, source: Callable[[], Callable[[], Batch] | None], send: Callable[[Batch], Sent]
    ) -> None:
        self._feeders = Feeders([_sent(source, send)], depth=1, name="headrace-device")
        self._finalizer = weakref.finalize(self, self._feeders.close, 0.0)

    def __next__(self) -> TorchBatch:
        sent, self.about = self._feeders.take(0)
        return sent.take()

    def close(self) -> None:
        """Forget what is ahead; returns when nothing is taken or decoded any more."""
        self._feeders.close(_FOREVER)


def _sent(
    source: Callable[[], Callable[[], Batch] | None], send: Callable[[Batch], Sent]
) -> Iterator[tuple[Sent, Batch]]:
    """Batches whose copy and decoding are over, so that their slots are free again."""
    while (take := source()) is not None:
        try:
            batch = take()
        except StopIteration:
            return
        del take
        sent = send(batch)
        about = batch.about()
        sent.wait(held_up=False)
        del batch
        yield sent, about
        del sent, about
