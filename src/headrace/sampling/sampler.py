"""Draw number -> sample: the mixture and the order within its sources, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.blocks import BlockOrder, Shares
from headrace.sampling.hashed import Ints, check_seed, hash_ints, name_key
from headrace.sampling.items import ItemTable, SourceItems

__all__ = ["Draws", "Sampler", "replace", "source_keys"]

_IN_PLACE = 0x7265706C616365  # "replace": an order that has nothing to do with the regular one


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Samples as columns, one row a draw."""

    number: Ints  #: number of the draw
    source: npt.NDArray[np.int32]  #: index into the sources
    ordinal: Ints  #: how many draws of this source came earlier
    turn: Ints  #: pass over the source, from 0
    episode: Ints  #: index into the source's list of episodes
    start: Ints  #: first step t of the window

    def __len__(self) -> int:
        return len(self.number)


class Sampler:
    """The endless training sequence as an array: a pure function of the seed and the draw number.

    >>> sampler = Sampler([0.5, 0.5], [SourceItems([9, 4]), SourceItems([7])], 0, ["a", "b"])
    >>> draws = sampler.draw(np.arange(4))
    >>> draws.source.tolist(), draws.ordinal.tolist()
    ([0, 0, 0, 1], [0, 1, 2, 0])
    """

    def __init__(
        self,
        weights: Sequence[float],
        sources: Sequence[SourceItems],
        seed: int,
        names: Sequence[str],
    ) -> None:
        if not len(weights) == len(sources) == len(names):
            raise UsageError(
                f"{len(weights)} weights, {len(sources)} sources and {len(names)} names",
                remedy="Give one of each for every source.",
            )
        self.shares = Shares.from_weights(weights)
        for name, items, places in zip(names, sources, self.shares.places, strict=True):
            if places and not items.length:
                raise UsageError(
                    f"no sample in {len(items.counts)} episodes: none is longer than the offset",
                    remedy="Give this source a smaller offset, another split, or weight 0.",
                    dataset=name,
                )
        self.seed = check_seed(seed)
        self._blocks = BlockOrder(self.shares, self.seed)
        self._table = ItemTable(sources, source_keys(self.seed, names))

    def __repr__(self) -> str:
        return f"Sampler({len(self.shares.places)} sources, seed={self.seed})"

    def draw(self, numbers: npt.ArrayLike) -> Draws:
        """The draws with these numbers."""
        number = np.asarray(numbers, np.int64)
        source, ordinal = self._blocks.assign(number)
        episode, start = self._table.locate(source, ordinal)
        turn = ordinal // self._table.lengths[source]
        return Draws(number, source, ordinal, turn, episode, start)

    def replacement(self, number: int, attempt: int) -> Draws:
        """What to take where draw `number` cannot be had, and that failed `attempt - 1` times.

        Another item of the same source and pass, from an order of its own, so that it is unlikely
        to be near its regular place. Attempts 1 to L go through all L items of the source.
        """
        return replace(self._table, self.draw([number]), attempt)


def replace(table: ItemTable, draw: Draws, attempt: int) -> Draws:
    """The rule behind `Sampler.replacement`."""
    if attempt < 1:
        raise UsageError(f"attempt is {attempt}", remedy="Attempts are counted from 1.")
    length = table.lengths[draw.source]
    other = draw.turn * length + (draw.ordinal + attempt - 1) % length
    episode, start = table.locate(draw.source, other, salt=_IN_PLACE)
    return dataclasses.replace(draw, episode=episode, start=start)


def source_keys(seed: int, names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """A key for each source, from the seed and its name: neighbours do not change its order."""
    keys = np.array([name_key(name) for name in names], np.uint64)
    return hash_ints(seed, keys)
