"""The tokenizer in plain Python, one row after the other, as it would be described to somebody.

It is the judge of the fast one (`prepare` and `tokenize`), which must give the same tokens.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.recipes.network import vocabulary as v

__all__ = ["Row", "reference_fields", "reference_measurements", "reference_tokens"]

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
