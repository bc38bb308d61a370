"""Ranks: each takes its slice of every global batch, so they are disjoint by construction.

The sequence of draws does not know of ranks. Whatever the world and the batch size, global batch
after global batch covers the draw numbers without gap or repeat: a run may go on with others.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import UsageError
from headrace.sampling.hashed import Ints

__all__ = ["draws_after", "rank_numbers"]


def rank_numbers(draws: int, batch: int, batch_size: int, rank: int = 0, world: int = 1) -> Ints:
    """The draw numbers of a rank's batch: `batch` counts from 0 since `draws` were consumed.

    >>> rank_numbers(draws=100, batch=0, batch_size=3, rank=1, world=2).tolist()
    [103, 104, 105]
    """
    _check(draws, batch, batch_size, world)
    if not 0 <= rank < world:
        raise UsageError(
            f"rank {rank} does not exist in a world of {world}",
            remedy=f"Ranks run from 0 to {world - 1}: check RANK and WORLD_SIZE.",
        )
    first = draws + (batch * world + rank) * batch_size
    return np.arange(first, first + batch_size, dtype=np.int64)


def draws_after(draws: int, batches: int, batch_size: int, world: int = 1) -> int:
    """Draws consumed by all ranks together after so many further batches on each.

    >>> draws_after(100, batches=2, batch_size=3, world=2)
    112
    """
    _check(draws, batches, batch_size, world)
    return draws + batches * batch_size * world


def _check(draws: int, batch: int, batch_size: int, world: int) -> None:
    least = {"draws": (draws, 0), "batch": (batch, 0), "batch_size": (batch_size, 1)}
    for name, (value, lowest) in {**least, "world": (world, 1)}.items():
        if value < lowest:
            raise UsageError(f"{name} is {value}", remedy=f"It is at least {lowest}.")
