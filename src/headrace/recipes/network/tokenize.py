"""Windows of prepared rows to tokens, many windows at once.

`tokenize_windows` is the fast form: a few dozen calls of numpy however many windows there are, so
32 and more at a time are several times as fast, a window, as one (`tokenize`). Both give the same
tokens, those of the plain twin in `reference`, on any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.recipes.network.arrange import arrange, chance
from headrace.recipes.network.templates import CASES, LONGEST, PLACES, SHAPES, SIZES, TIME, WIDTH
from headrace.recipes.network.vocabulary import BYTE, LENGTH

__all__ = ["FIELDS", "tokenize", "tokenize_windows"]

#: What a batch has: int32 of [.., 1024] each.
FIELDS = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)

_Rows = Mapping[str, npt.NDArray[Any]]

_PLACES = PLACES.ravel()
_POSITIONS = np.arange(LENGTH, dtype=np.int32)
_SPECIAL = np.arange(BYTE, dtype=np.uint16)
_BYTE = np.uint16(BYTE)


def tokenize(rows: _Rows, window: int, epoch: int, seed: int, out: _Rows) -> None:
    """Write the tokens of one window into `out`, arrays of [1024] under the names of `FIELDS`.

    `rows` are slices of prepared columns; `window` is the window's number in the dataset.
    """
    one = {name: values[None] for name, values in rows.items()}
    tokenize_windows(one, window, epoch, seed, {name: array[None] for name, array in out.items()})


def tokenize_windows(rows: _Rows, windows: Any, epochs: Any, seed: int, out: _Rows) -> None:
    """Write the tokens of windows into `out`, arrays of [windows, 1024] under names of `FIELDS`.

    `rows` are prepared columns of [windows, rows, ...]; `windows` and `epochs` have a number for
    each, or one for all.
    """
    time = rows["time"]
    count = time.shape[0]
    if time.ndim != 2 or not time.size:
        raise UsageError(
            f"there are no rows in windows of the shape {list(time.shape)}",
            remedy="Give prepared columns of [windows, rows, ...]",
        )
    tokens, sizes = _flat_tokens(rows, chance(seed, epochs, windows, time.shape[1]))
    first = out.get("inputs")
    if first is None or first.shape != (count, LENGTH):
        raise UsageError(
            f"there is no array 'inputs' of [{count}, {LENGTH}] to write to",
            remedy=f"Give int32 arrays for {', '.join(FIELDS)}",
        )
    begin = 0
    for row, size in zip(first, sizes.tolist(), strict=True):
        used = min(size, LENGTH)
        row[:used] = tokens[begin : begin + used]
        row[used:] = 0
        begin += size
    real = sizes[:, None] > _POSITIONS
    for name, array in out.items():
        if name.endswith("_segmentation"):
            array[...] = real
        elif name.endswith("_position"):
            array[...] = _POSITIONS
        elif name == "targets":
            array[...] = first


def _flat_tokens(
    rows: _Rows, words: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The tokens of all windows in one piece, and how many each has (1024 or a little more)."""
    windows, length = rows["time"].shape
    order = arrange(words, rows["time"])
    case = CASES[order.kind * SHAPES + rows["shape"].reshape(-1)[order.row]]
    size = SIZES[case]
    ends = size.cumsum(axis=1)
    kept = ends - size < LENGTH  # measurements that begin inside the sequence
    size *= kept
    case, row, seconds = case[kept], order.row[kept], order.seconds[kept]
    raw = np.empty((len(row), WIDTH), np.uint16)
    raw[:, :BYTE] = _SPECIAL
    np.add(rows["bytes"].reshape(windows * length, -1)[row], _BYTE, out=raw[:, BYTE:TIME])
    clock = seconds.astype(">u8").view(np.uint8).reshape(-1, 8)
    np.add(clock, _BYTE, out=raw[:, TIME:])
    sizes = size[kept]
    begin = sizes.cumsum() - sizes
    place = np.repeat(case * LONGEST - begin, sizes)
    place += np.arange(len(place))
    place = _PLACES[place]
    place += np.repeat(np.arange(0, raw.size, WIDTH), sizes)
    return raw.reshape(-1)[place], size.sum(axis=1)
