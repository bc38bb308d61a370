"""Batches of stored samples in torch's worker processes, for the rivals that use its loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.measure.baselines.stored import EncodedPair, PairDecoder
from headrace.measure.baselines.torch_memory import numpy_frames, with_frames

__all__ = ["Collate", "endless"]


class Collate:
    """Decodes the samples of a batch into shared memory; torch sends it to its workers."""

    def __init__(self, decoder: PairDecoder, frames: int) -> None:
        self._decoder, self._frames = decoder, frames

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        places = [f"{place}.frame" for place in range(self._frames)]
        pairs = [
            EncodedPair([sample[place] for place in places], sample["about"]) for sample in samples
        ]
        shape = self._decoder.shape(len(pairs))
        return with_frames(shape, lambda frames: self._decoder.decode(pairs, frames))


def endless(loader: Any) -> Iterator[dict[str, Any]]:
    """One epoch after the other."""
    while True:
        yield from map(numpy_frames, loader)
