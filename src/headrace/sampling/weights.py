"""Weights as people write them -> shares of the draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.errors import UsageError

__all__ = ["resolve_weights"]


def resolve_weights(
    weights: Sequence[float | str | None],
    pairs: Sequence[int],
    names: Sequence[str] | None = None,
) -> list[float]:
    """Shares that sum to 1: numbers are shares, None and "proportional" split the rest by pairs.

    Numbers alone are normalised, whatever their sum. Beside proportional ones they must leave a
    rest: with a sum of 1 or more it is an error, because anything else would quietly give those
    sources nothing, or the numbers another meaning. A weight of 0 or less is a share of 0.

    >>> resolve_weights([0.5, None, "proportional"], pairs=[7, 300, 100])
    [0.5, 0.375, 0.125]
    """
    names = names or [f"number {i}" for i in range(len(weights))]
    if not len(weights) == len(pairs) == len(names):
        raise UsageError(
            f"{len(weights)} weights for {len(pairs)} numbers of pairs and {len(names)} names",
            remedy="Give one of each for every source.",
        )
    given: list[float | None] = []
    for name, weight in zip(names, weights, strict=True):
        if weight is None or weight == "proportional":
            given.append(None)
        elif not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise UsageError(
                f"weight of source {name!r} is {weight!r}",
                remedy='Give a finite number, or "proportional".',
            )
        else:
            given.append(max(0.0, weight))
    total = math.fsum(weight for weight in given if weight is not None)
    rest = [name for name, weight in zip(names, given, strict=True) if weight is None]
    if not rest:
        if total <= 0:
            raise UsageError("no source has a weight above 0", remedy="Give one a weight above 0.")
        return [(weight or 0.0) / total for weight in given]
    if total >= 1:
        raise UsageError(
            f"the given weights sum to {total:g}, which leaves nothing for the proportional "
            f"{', '.join(map(repr, rest))}",
            remedy="Lower them until they sum to less than 1, or give all sources a number.",
        )
    shared = sum(count for count, weight in zip(pairs, given, strict=True) if weight is None)
    if shared <= 0:
        raise UsageError(
            f"no pairs in the proportional {', '.join(map(repr, rest))}",
            remedy="Give these sources a smaller offset, another split, or weight 0.",
        )
    return [
        (1 - total) * count / shared if weight is None else weight
        for weight, count in zip(given, pairs, strict=True)
    ]
