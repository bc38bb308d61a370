"""The mixture: which source a draw comes from, with shares that are exact in every block.

The endless sequence is cut into blocks of 65,536 draws. In each, source d has the same number of
places, and a keyed permutation of the block says where they are. Within a block the places of a
source are numbered in the order in which they come, so the number of earlier draws of source d is
`block * places[d] + rank`: no history is needed, and a source goes through its items pass by pass.

The trade: shares are multiples of 1 / 65,536 (a source that asks for less gets that), and entering
a block lays out all of it (6 ms on one core), which is why the last few layouts are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.bijection import permute
from headrace.sampling.hashed import Ints, check_seed, hash_ints

__all__ = ["BLOCK", "BlockOrder", "Shares", "assign"]

#: Draws in a block: 29 sources of 0.03 get 2,260 or 2,259 places, equal to within 0.05%.
BLOCK = 65_536
_KEPT_LAYOUTS = 4  # a batch spans two blocks, and ranks or a resume may look at neighbours
_LAYOUT_KEY = 0x626C6F636B  # "block": keeps these keys apart from those of the sources


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """How many places each source has in every block."""

    places: Ints  #: per source; they sum to the block
    block: int = BLOCK  #: draws in a block

    @classmethod
    def from_weights(cls, weights: Sequence[float], block: int = BLOCK) -> Shares:
        """Largest remainders of `block * weight / sum`, at least 1 for a weight above 0.

        >>> Shares.from_weights([0.5, 0.3, 0.2]).places.tolist()
        [32768, 19661, 13107]
        """
        for i, weight in enumerate(weights):
            if not math.isfinite(weight) or weight < 0:
                raise UsageError(
                    f"weights[{i}] is {weight!r}", remedy="A weight is a number from 0 upwards."
                )
        drawn = [i for i, weight in enumerate(weights) if weight > 0]
        if not drawn:
            raise UsageError(
                f"no weight above 0 among {len(weights)}", remedy="Give a source a weight above 0."
            )
        if len(drawn) > block:
            raise UsageError(
                f"{len(drawn)} sources do not fit a block of {block} draws",
                remedy=f"Mix at most {block} sources, or merge small ones.",
            )
        places = np.zeros(len(weights), np.int64)
        for i, count in _apportion({i: Fraction(weights[i]) for i in drawn}, block):
            places[i] = count
        places.flags.writeable = False
        return cls(places, block)


def _apportion(weights: dict[int, Fraction], block: int) -> Iterator[tuple[int, int]]:
    """Exact in rational numbers: the result depends on no order of summation."""
    while True:
        scale = block / sum(weights.values())
        tiny = [i for i, weight in weights.items() if weight * scale < 1]
        if not tiny:
            break
        for i in tiny:
            del weights[i]
            yield i, 1
        block -= len(tiny)
    quotas = {i: weight * scale for i, weight in weights.items()}
    left = block - sum(math.floor(quota) for quota in quotas.values())
    by_remainder = sorted(quotas, key=lambda i: (math.floor(quotas[i]) - quotas[i], i))
    for order, i in enumerate(by_remainder):
        yield i, math.floor(quotas[i]) + (order < left)


class BlockOrder:
    """The mixture as an array: draw number -> source and the running number within that source.

    >>> order = BlockOrder(Shares.from_weights([2, 1]), seed=0)
    >>> source, ordinal = order.assign(np.arange(6))
    >>> source.tolist(), ordinal.tolist()
    ([0, 0, 0, 1, 0, 1], [0, 1, 2, 0, 3, 1])
    """

    def __init__(self, shares: Shares, seed: int) -> None:
        self.shares = shares
        self.seed = check_seed(seed)
        drawn = np.flatnonzero(shares.places)
        self._only = int(drawn[0]) if len(drawn) == 1 else None  # then there is nothing to lay out
        self._layouts: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}

    def __repr__(self) -> str:
        return f"BlockOrder({len(self.shares.places)} sources, seed={self.seed})"

    def assign(self, numbers: Ints) -> tuple[npt.NDArray[np.int32], Ints]:
        """Source and running number within it, for each draw number."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and numbers.min() < 0:
            raise UsageError(
                f"draw number {numbers.min()} is negative", remedy="Draws are numbered from 0."
            )
        if self._only is not None:
            return np.full(numbers.shape, self._only, np.int32), numbers.copy()
        blocks, positions = np.divmod(numbers, self.shares.block)
        source = np.empty(numbers.shape, np.int32)
        ordinal = np.empty(numbers.shape, np.int64)
        for block in np.unique(blocks).tolist():
            owner, rank = self._layout(block)
            here = blocks == block
            there = positions[here]
            source[here] = owner[there]
            ordinal[here] = block * self.shares.places[owner[there]] + rank[there]
        return source, ordinal

    def _layout(self, block: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        kept = self._layouts
        if block not in kept:
            latest = list(kept.items())[1 - _KEPT_LAYOUTS :]
            kept = {**dict(latest), block: layout(self.shares, self.seed, block)}
            self._layouts = kept  # replaced, never changed: threads may be reading the old one
        return kept[block]


def layout(
    shares: Shares, seed: int, block: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Per position of a block: the source, and how many of its places come earlier."""
    key = hash_ints(seed, _LAYOUT_KEY, block)
    place = permute(np.arange(shares.block), shares.block, key)
    sources = np.arange(len(shares.places), dtype=np.int32)
    owner = np.repeat(sources, shares.places)[place]
    narrow = owner.astype(np.uint16) if len(sources) <= 1 << 16 else owner  # then a radix sort
    by_source = np.argsort(narrow, kind="stable")
    starts = np.cumsum(shares.places) - shares.places
    rank = np.empty(shares.block, np.int32)
    rank[by_source] = np.arange(shares.block) - np.repeat(starts, shares.places)
    return owner, rank


def assign(numbers: Ints, shares: Shares, seed: int) -> tuple[npt.NDArray[np.int32], Ints]:
    """`BlockOrder.assign` without anything kept."""
    return BlockOrder(shares, seed).assign(numbers)
