"""Tokens back to measurements: to look at what a model sees or writes, and to check the tokenizer.

What the tokens do not hold is lost: fractions of seconds, of absolute times and of every delta
(so a time that follows k deltas may be up to k seconds early), and the low bits of `rtt`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError
from headrace.recipes.network import vocabulary as v

#: Bytes that follow a token which opens a block.
_PAYLOAD = {
    v.SRC4: 4,
    v.SRC6: 16,
    v.DST4: 4,
    v.DST6: 16,
    v.ABSOLUTE: 8,
    v.DELTA1: 1,
    v.DELTA4: 4,
    v.RTT: 2,
    v.FAILED: 0,
}
_BLOCK = {
    v.SRC4: "source",
    v.SRC6: "source",
    v.DST4: "destination",
    v.DST6: "destination",
    v.ABSOLUTE: "time",
    v.DELTA1: "time",
    v.DELTA4: "time",
    v.RTT: "result",
    v.FAILED: "result",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement as the tokens have it."""

    src: str
    dst: str
    rtt: float | None  #: milliseconds; None: failed
    time: int | None  #: Unix seconds, by the absolute time and the deltas since; None: untimed
    delta: int | None  #: seconds since the timed measurement before, where that is what is given


def decode(tokens: npt.NDArray[Any] | Sequence[int]) -> list[Measurement]:
    """The measurements of a sequence, padding left out.

    The last one is left out if the sequence ends within it; if it ends just before its time, the
    measurement looks untimed. Tokens that no tokenizer writes are an error.
    """
    values = np.asarray(tokens).tolist()
    starts = [place for place, token in enumerate(values) if token == v.START]
    if not values:
        return []
    if not starts or starts[0] != 0:
        raise _odd(0, values[0], "a sequence begins with MeasurementStart (0)")
    measurements: list[Measurement] = []
    clock: int | None = None
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        blocks = _blocks(values, start + 1, end)
        if not blocks and end == start + 1:
            continue  # padding
        if blocks is None or not {"source", "destination", "result"} <= blocks.keys():
            if end == len(values) or values[end:] == [v.START] * (len(values) - end):
                break  # cut off
            raise _odd(start, v.START, "the measurement that begins here is not complete")
        measurement = _measurement(blocks, clock)
        clock = measurement.time if measurement.time is not None else clock
        measurements.append(measurement)
    return measurements


def _blocks(values: list[int], place: int, end: int) -> dict[str, tuple[int, bytes]] | None:
    """Blocks by name: the token that opens each, and its bytes; None if the last one is cut."""
    found: dict[str, tuple[int, bytes]] = {}
    while place < end:
        token = values[place]
        if token not in _PAYLOAD:
            raise _odd(place, token, "no block begins with it")
        if _BLOCK[token] in found:
            raise _odd(place, token, f"the measurement has a {_BLOCK[token]} already")
        first, place = place + 1, place + 1 + _PAYLOAD[token]
        payload = values[first : min(place, end)]
        for number, value in enumerate(payload):
            if not v.BYTE <= value < v.VOCABULARY:
                raise _odd(first + number, value, "a byte (11 to 266) should be here")
        if len(payload) < _PAYLOAD[token]:
            return None
        found[_BLOCK[token]] = token, bytes(value - v.BYTE for value in payload)
    return found


def _measurement(blocks: dict[str, tuple[int, bytes]], clock: int | None) -> Measurement:
    kind, data = blocks["result"]
    rtt = None if kind == v.FAILED else float(v.decode_rtt(np.array(_number(data))))
    time = delta = None
    if "time" in blocks:
        kind, value = blocks["time"][0], _number(blocks["time"][1])
        if kind == v.ABSOLUTE:
            time = value
        else:
            delta, time = value, None if clock is None else clock + value
    src, dst = (str(ipaddress.ip_address(blocks[end][1])) for end in ("source", "destination"))
    return Measurement(src, dst, rtt, time, delta)


def _number(data: Iterable[int]) -> int:
    return int.from_bytes(bytes(data), "big")


def _odd(place: int, token: int, why: str) -> DataError:
    name = f" ({v.SPECIAL_NAMES[token]})" if 0 <= token < v.BYTE else ""
    return DataError(
        f"token {token}{name} at place {place}: {why}",
        remedy="Decode whole sequences of this tokenizer, from their first token on",
    )
