"""Which window is draw number i: shuffled exactly, locally, or not at all."""

from __future__ import annotations

from typing import Any, Protocol, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.loader.options import Shuffle
from headrace.loader.rows.rowset import RowSet
from headrace.sampling.bijection import Ints
from headrace.sampling.items import SourceItems
from headrace.sampling.order import LocalOrder
from headrace.sampling.sampler import Sampler

__all__ = ["RowOrder", "fingerprint_of", "order_of"]

_NAME = "rows"  # part of the sampler's key; not the path, so that data may be moved


class RowOrder(Protocol):
    """An endless sequence of windows, a pure function of the draw number."""

    def draw(self, numbers: npt.ArrayLike, /) -> tuple[Ints, Ints]:
        """Pass and window of each draw."""


class _Exact:
    """The sampler of mixtures, with one source."""

    def __init__(self, windows: int, seed: int) -> None:
        self._sampler = Sampler([1.0], [SourceItems([windows])], seed, [_NAME])

    def draw(self, numbers: npt.ArrayLike) -> tuple[Ints, Ints]:
        draws = self._sampler.draw(numbers)
        return draws.turn, draws.start


class _Plain:
    def __init__(self, windows: int) -> None:
        self._windows = windows

    def draw(self, numbers: npt.ArrayLike) -> tuple[Ints, Ints]:
        turn, window = np.divmod(np.asarray(numbers, np.int64), self._windows)
        return turn, window


def order_of(rows: RowSet, shuffle: Shuffle, seed: int, open_pieces: int) -> RowOrder:
    """The order of a set's windows."""
    if shuffle not in get_args(Shuffle):
        raise UsageError(f"shuffle is {shuffle!r}", remedy="Give 'exact', 'local' or 'none'")
    if shuffle == "none":
        return _Plain(len(rows))
    if shuffle == "exact":
        return _Exact(len(rows), seed)
    pieces = rows.order_pieces
    bounds = rows.windows.before(np.append(pieces.starts, pieces.ends[-1]))
    return LocalOrder(np.diff(bounds), open_pieces, seed)


def fingerprint_of(rows: RowSet, shuffle: Shuffle, open_pieces: int) -> dict[str, Any]:
    """Everything that the sequence depends on, beside the seed."""
    local = shuffle == "local"
    about = {"name": _NAME, **rows.fingerprint(groups=local), "shuffle": shuffle}
    return {"sources": [{**about, **({"open_pieces": open_pieces} if local else {})}]}
