"""Ranks: each takes its slice of every global batch, so they are disjoint by construction.

The sequence of draws is the same for any number of ranks. Whatever the world size and the batch
size, the global batches cover the draw numbers without gap or repeat: a run may resume with others.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import UsageError
from headrace.sampling.bijection import Ints


def rank_numbers(
    draws: int, batch: int, batch_size: int, rank: int = 0, world_size: int = 1
) -> Ints:
    """The draw numbers of a rank's batch: `batch` counts from 0 since `draws` were consumed.

    >>> rank_numbers(draws=100, batch=0, batch_size=3, rank=1, world_size=2).tolist()
    [103, 104, 105]
    """
    _check(draws, batch, batch_size, world_size)
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} does not exist in a world of {world_size}",
            remedy=f"Ranks run from 0 to {world_size - 1}: check RANK and WORLD_SIZE.",
        )
    first = draws + (batch * world_size + rank) * batch_size
    return np.arange(first, first + batch_size, dtype=np.int64)


def draws_after(draws: int, batches: int, batch_size: int, world_size: int = 1) -> int:
    """Draws consumed by all ranks together after `batches` more batches on each.

    >>> draws_after(100, batches=2, batch_size=3, world_size=2)
    112
    """
    _check(draws, batches, batch_size, world_size)
    return draws + batches * batch_size * world_size


def _check(draws: int, batch: int, batch_size: int, world_size: int) -> None:
    least = {"draws": (draws, 0), "batch": (batch, 0), "batch_size": (batch_size, 1)}
    for name, (value, lowest) in {**least, "world_size": (world_size, 1)}.items():
        if value < lowest:
            raise UsageError(f"{name} is {value}", remedy=f"It is at least {lowest}.")
