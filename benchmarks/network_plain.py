"""The plain twins of the network recipe: what its fast code is held to, and measured against.

`reference_tokens` is the tokenizer, row by row, with Python's own `hashlib` and `random`.
`memory_batches` gives batches from rows in memory, in a global shuffle: nothing can be faster on
one core than tokenizing rows that are there already.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from headrace.errors import HeadraceError, UsageError
from headrace.recipes.network import FIELDS, prepare, tokenize_windows
from headrace.recipes.network import vocabulary as v
from headrace.recipes.network.prepare import BadAddresses, Prepared
from headrace.recipes.network.vocabulary import COLUMNS, LENGTH, ROWS
from headrace.sampling import check_seed, hash_ints, permute

__all__ = [
    "Row",
    "memory_batches",
    "read_rows",
    "reference_fields",
    "reference_measurements",
    "reference_tokens",
]

_SECOND = 1_000_000_000
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement as a file has it."""

    time: int  #: nanoseconds since 1970
    src: str | None
    dst: str | None
    version: int  #: 4 or 6
    rtt: float | None  #: milliseconds; negative: failed


def reference_fields(
    rows: Sequence[Row], window: int, epoch: int, seed: int
) -> dict[str, list[int]]:
    """What a training program gets of a window."""
    tokens = reference_tokens(rows, window, epoch, seed)[: v.LENGTH]
    real = [1] * len(tokens) + [0] * (v.LENGTH - len(tokens))
    tokens = tokens + [0] * (v.LENGTH - len(tokens))
    fields = {}
    for name in ("inputs", "targets"):
        fields[name] = tokens
        fields[f"{name}_segmentation"] = real
        fields[f"{name}_position"] = list(range(v.LENGTH))
    return fields


def reference_tokens(rows: Sequence[Row], window: int, epoch: int, seed: int) -> list[int]:
    """All tokens of a window, before they are cut to length."""
    tokens = []
    previous: int | None = None
    for row, timed in reference_measurements(rows, window, epoch, seed):
        tokens += _measurement(row, timed, previous)
        if timed:
            previous = row.time
    return tokens


def reference_measurements(
    rows: Sequence[Row], window: int, epoch: int, seed: int
) -> list[tuple[Row, bool]]:
    """A window's rows in the order they stand in, and whether each is timed."""
    mode, *words = (_hash(seed, epoch, window, number) for number in range(1 + len(rows)))
    in_time = sorted(range(len(rows)), key=lambda i: rows[i].time)
    shuffled = sorted(range(len(rows)), key=lambda i: (words[i] >> 17, i))
    share = mode * 10 >> 64
    if share < 4:
        return [(rows[i], True) for i in in_time]
    if share < 7:
        return [(rows[i], False) for i in shuffled]
    timed = [i for i in in_time if words[i] & 2]
    others = [i for i in shuffled if not words[i] & 2]
    order: list[tuple[Row, bool]] = []
    for word in words:
        if timed and (word & 1 or not others):
            order.append((rows[timed.pop(0)], True))
        else:
            order.append((rows[others.pop(0)], False))
    return order


def _measurement(row: Row, timed: bool, previous: int | None) -> list[int]:
    blocks = [
        _address(row.src, row.version, v.SRC4, v.SRC6),
        _address(row.dst, row.version, v.DST4, v.DST6),
        _result(row.rtt),
    ]
    if timed:
        blocks.append(_time(row.time, previous))
    second = int(abs(row.time) // _SECOND) * (1 if row.time >= 0 else -1)
    text = f"{row.src or ''}|{row.dst or ''}|{second}"
    seed = int.from_bytes(hashlib.md5(text.encode()).digest()[:4], "big")
    random.Random(seed).shuffle(blocks)
    return [v.START, *(token for block in blocks for token in block)]


def _address(text: str | None, version: int, role4: int, role6: int) -> list[int]:
    read: Callable[[str], ipaddress.IPv4Address | ipaddress.IPv6Address]
    if version == 4:
        role, empty, read = role4, "0.0.0.0", ipaddress.IPv4Address
    else:
        role, empty, read = role6, "::", ipaddress.IPv6Address
    return [role, *_bytes(read(text or empty).packed)]


def _result(rtt: float | None) -> list[int]:
    if rtt is None or not math.isfinite(rtt) or rtt < 0:
        return [v.FAILED]
    micros = max(1.0, rtt * 1000)
    exponent = 0
    while micros >= 2048 and exponent < 31:
        micros /= 2
        exponent += 1
    mantissa = 2047 if micros >= 2047 else math.floor(micros)
    return [v.RTT, *_bytes(bytes([exponent << 3 | mantissa >> 8, mantissa & 255]))]


def _time(time: int, previous: int | None) -> list[int]:
    if previous is None:
        return [v.ABSOLUTE, *_bytes(struct.pack(">Q", max(0, time) // _SECOND))]
    delta = min(max(0, time - previous) // _SECOND, (1 << 32) - 1)
    if delta < 256:
        return [v.DELTA1, *_bytes(bytes([delta]))]
    return [v.DELTA4, *_bytes(struct.pack(">I", delta))]


def _bytes(data: bytes) -> list[int]:
    return [v.BYTE + byte for byte in data]


def _hash(*parts: int) -> int:
    """The keyed hash of the sampler (`headrace.sampling.bijection`), in plain integers."""
    state = _mix(parts[0] + 0x9E3779B97F4A7C15)
    for part in parts[1:]:
        state = _mix((state ^ part & _WORD) + 0x9E3779B97F4A7C15)
    return state


def _mix(word: int) -> int:
    word &= _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


def read_rows(folder: str | Path, *, bad_addresses: BadAddresses = "error") -> Prepared:
    """All rows of a folder's Parquet files, by name, prepared: 44 bytes each."""
    files = sorted(Path(folder).glob("*.parquet"))
    if not files:
        raise UsageError(
            f"there are no Parquet files in {str(folder)!r}",
            remedy="Give the folder of a split, such as data/train",
        )
    parts = []
    for file in files:
        try:
            table = pq.read_table(file, columns=list(COLUMNS))
            parts.append(prepare(table, bad_addresses=bad_addresses))
        except HeadraceError as error:
            raise error.within(file=str(file)) from None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def memory_batches(
    columns: Mapping[str, npt.NDArray[Any]], batch_size: int, *, seed: int = 0, start: int = 0
) -> Iterator[dict[str, npt.NDArray[np.int32]]]:
    """Endless batches of windows of 64 rows, each epoch in another order; `start` batches in.

    Windows that do not fill a batch at the end of an epoch begin the next one.
    """
    rows = len(columns["time"])
    windows = max(1, (rows - ROWS) // ROWS + 1)
    each = min(rows, ROWS)
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}", remedy="Give a number from 1 upwards")
    check_seed(seed)
    places = np.arange(each)
    while True:
        draw = start * batch_size + np.arange(batch_size)
        epoch, within = np.divmod(draw, windows)
        window = permute(within, windows, hash_ints(seed, epoch))
        chosen = (window * ROWS)[:, None] + places
        batch = {name: np.empty((batch_size, LENGTH), np.int32) for name in FIELDS}
        taken = {name: values[chosen] for name, values in columns.items()}
        tokenize_windows(taken, window, epoch, seed, batch)
        yield batch
        start += 1
