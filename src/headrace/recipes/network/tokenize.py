"""Windows of prepared rows to tokens, many windows at once.

`tokenize_windows` is the fast form: a few dozen calls of numpy however many windows there are, so
32 and more at a time are several times as fast, a window, as one (`tokenize`). Both give the same
tokens, on any number of threads; a plain twin in the tests holds them to the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.recipes.network.orders import ORDERS, ORDERS3, ORDERS4
from headrace.recipes.network.prepare import SECOND
from headrace.recipes.network.vocabulary import (
    ABSOLUTE,
    BYTE,
    DELTA1,
    DELTA4,
    DST4,
    DST6,
    FAILED,
    LENGTH,
    RTT,
    SRC4,
    SRC6,
    START,
)
from headrace.sampling import Ints, Words, hash_ints, to_range

#: What a batch has: int32 of [.., 1024] each.
FIELDS = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)


# -- templates -------------------------------------------------------------------------------------

# Where each token of a measurement comes from. A measurement's raw tokens lie in one row: the
# special
# ones, then the bytes of source, destination, round-trip time and time. A template lists the places
# of its tokens in that row, in order, for one shape that a measurement can have. So a measurement
# is made by looking up its template and gathering.

SRC, DST, CODE = BYTE, BYTE + 16, BYTE + 32  #: first places of the bytes
TIME = BYTE + 34  #: eight bytes, big-endian; short deltas are the last ones
WIDTH = TIME + 8  #: places of a row

SHAPES = 4 * ORDERS  #: values of the prepared column `shape`
LONGEST = 1 + 17 + 17 + 3 + 9  #: tokens

_TIMES: tuple[list[int], ...] = (
    [],
    [ABSOLUTE, *range(TIME, TIME + 8)],
    [DELTA1, TIME + 7],
    [DELTA4, *range(TIME + 4, TIME + 8)],
)


def _template(six: bool, failed: bool, time: list[int], order: tuple[int, ...]) -> list[int]:
    size = 16 if six else 4
    blocks = [
        [SRC6 if six else SRC4, *range(SRC, SRC + size)],
        [DST6 if six else DST4, *range(DST, DST + size)],
        [FAILED] if failed else [RTT, CODE, CODE + 1],
        time,
    ]
    return [START, *(place for block in order for place in blocks[block])]


def _templates() -> tuple[list[list[int]], dict[tuple[int, bool, bool, int], int]]:
    """All templates, and the number of each by kind of time, version, failure and order."""
    templates: list[list[int]] = []
    numbers = {}
    for six in (False, True):
        for failed in (False, True):
            for kind, time in enumerate(_TIMES):
                for number, order in enumerate(ORDERS4 if time else ORDERS3):
                    numbers[kind, six, failed, number] = len(templates)
                    templates.append(_template(six, failed, time, order))
    return templates, numbers


def _cases(numbers: dict[tuple[int, bool, bool, int], int]) -> list[int]:
    """The template of every kind of time and shape."""
    cases = []
    for kind in range(len(_TIMES)):
        for shape in range(SHAPES):
            code, six, failed = shape // 4, bool(shape & 2), bool(shape & 1)
            four, three = divmod(code, len(ORDERS3))
            cases.append(numbers[kind, six, failed, four if kind else three])
    return cases


_all, _numbers = _templates()
#: Template by kind of time (none, absolute, one byte, four bytes) * SHAPES + shape.
CASES = np.array(_cases(_numbers), np.int32)
#: Tokens of each template.
SIZES = np.array([len(template) for template in _all], np.int64)
#: Places of the tokens of each template, one after the other in rows of LONGEST.
PLACES = np.array([template + [0] * (LONGEST - len(template)) for template in _all], np.int64)


# -- the order of a window -------------------------------------------------------------------------

# Which measurements are timed, and in which order they stand: the training modes. 40% of windows
# have
# all times, in order; 30% have none, shuffled; in 30% each row is timed with probability 1/2, the
# timed ones in order, the others shuffled, and coin flips decide which of the two comes next while
# both last. All randomness comes from (seed, epoch, window): see `_random_words`.

#: Kinds of time, as `_TIMES` lists them.
NO_TIME, ABSOLUTE_TIME, SHORT_DELTA, LONG_DELTA = range(4)

_ALL, _NONE = 4, 7  # of ten: below the first all are timed, below the second none
_COIN, _TIMED = np.uint64(1), np.uint64(2)  # bits of a row's word
_INDEX_BITS = np.uint64((1 << 16) - 1)  # of a row's key: no two are equal
_UNTIMED = np.uint64(1 << 63)
_1 = np.uint64(1)
_LONGEST_DELTA = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class _Arranged:
    """The measurements of windows in the order they stand in, [windows, rows]."""

    row: Ints  #: number of the row among those of all windows
    kind: Ints  #: of time
    seconds: Words  #: since 1970, or since the timed measurement before


def _random_words(seed: int, epoch: Any, window: Any, rows: int) -> Words:
    """A word for the window and one for each of its rows: [windows, 1 + rows].

    The window's says the mode. Of a row's, the first bit is a coin, the second whether the row is
    timed, and those above the seventeenth are what rows are shuffled by.
    """
    epochs, windows = np.atleast_1d(epoch)[:, None], np.atleast_1d(window)[:, None]
    return hash_ints(seed, epochs, windows, np.arange(1 + rows)[None])


def _arrange(words: Words, time: npt.NDArray[np.int64]) -> _Arranged:
    """Order the rows of windows of times [windows, rows], in nanoseconds."""
    windows, rows = time.shape
    number = np.arange(rows)
    before = np.arange(0, windows * rows, rows)[:, None]  # rows of earlier windows
    mode = to_range(words[:, 0], 10)[:, None]
    words = words[:, 1:]
    mixed = mode >= _NONE
    timed = (mode < _ALL) | mixed & ((words & _TIMED) != 0)
    # Timed rows come first, by their time; then the others, by their words.
    shuffled = words >> _1 & ~_INDEX_BITS | _UNTIMED | number.astype(np.uint64)
    by_key = np.where(timed, _ranks(time), shuffled).argsort(axis=1)
    by_key += before
    count = timed.sum(axis=1, keepdims=True)
    times = time.reshape(-1)[by_key]
    seconds = np.empty((windows, rows), np.uint64)
    seconds[:, :1] = np.maximum(times[:, :1], 0) // SECOND
    apart = np.diff(times.view(np.uint64), axis=1) // np.uint64(SECOND)  # nonsense where untimed
    seconds[:, 1:] = np.minimum(apart, _LONGEST_DELTA)
    kind = np.where(seconds < 256, SHORT_DELTA, LONG_DELTA)
    kind[:, 0] = ABSOLUTE_TIME
    kind[number >= count] = NO_TIME
    if not mixed.any():
        return _Arranged(by_key, kind, seconds)
    place = np.where(mixed, _interleaved(words, count), number) + before
    return _Arranged(*(each.reshape(-1)[place] for each in (by_key, kind, seconds)))


def _ranks(time: npt.NDArray[np.int64]) -> Words:
    """Each row's rank by its time; rows of one time keep their order."""
    windows, rows = time.shape
    ranks = np.tile(np.arange(rows, dtype=np.uint64), (windows, 1))
    unsorted = np.flatnonzero((time[:, 1:] < time[:, :-1]).any(axis=1))
    if unsorted.size:
        order = time[unsorted].argsort(axis=1, kind="stable")
        within = np.empty_like(order)
        np.put_along_axis(within, order, np.arange(rows)[None], 1)
        ranks[unsorted] = within
    return ranks


def _interleaved(words: Words, timed: Ints) -> Ints:
    """Which row stands at each place, where the first `timed` are one queue and the rest
    another."""
    rows = words.shape[1]
    coin = (words & _COIN).astype(np.int64)
    before = coin.cumsum(axis=1) - coin  # of the timed, as long as both queues last
    others = np.arange(rows) - before
    over = (before >= timed) | (others >= rows - timed)
    first = over.argmax(axis=1)[:, None]
    rest = np.take_along_axis(before, first, 1) < timed  # which queue is left then
    take = np.where(over, rest, coin != 0)
    taken = take.cumsum(axis=1)
    return np.where(take, taken - 1, timed + np.arange(rows) - taken)


# -- tokens ----------------------------------------------------------------------------------------

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
    tokens, sizes = _flat_tokens(rows, _random_words(seed, epochs, windows, time.shape[1]))
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
    order = _arrange(words, rows["time"])
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


def shift_targets(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch whose `targets` are those of the next position; the last one has none.

    >>> tokens, real = np.array([[0, 1, 22, 0, 0]]), np.array([[1, 1, 1, 1, 0]])
    >>> shifted = shift_targets({"targets": tokens, "targets_segmentation": real})
    >>> shifted["targets"].tolist(), shifted["targets_segmentation"].tolist()
    ([[1, 22, 0, 0, 0]], [[1, 1, 1, 0, 0]])

    A trainer's own shift usually leaves a padding token out of the loss wherever it stands. Here 0
    is also the beginning of a measurement, so `targets_segmentation` alone says what counts. All
    arrays are copies, so keeping the batch holds none of the loader's memory.
    """
    shifted = {name: np.array(values) for name, values in batch.items()}
    for name in ("targets", "targets_segmentation"):
        shifted[name][..., :-1] = batch[name][..., 1:]
        shifted[name][..., -1] = 0
    return shifted
