"""Packed numbers and encoded tensors: bytes to numpy arrays, within limits."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ImageError, RecordError
from headrace.formats.features import Field

__all__ = ["MAX_TENSOR_BYTES", "decode_tensor", "decode_varints"]

#: One decoded tensor may have this many bytes. Not measured: far above any step of robot data
#: (a 4k float image is 100 MB) and far below what would exhaust a workstation.
MAX_TENSOR_BYTES = 256 << 20


def decode_varints(
    data: bytes, start: int = 0, stop: int | None = None, *, count: int | None = None
) -> NDArray[np.int64]:
    """The int64 values of a packed Int64List, or those numbered [start, stop) of it.

    `count` is how many there should be in all; another number is an error.

    >>> decode_varints(bytes([1, 0xAC, 0x02])).tolist()
    [1, 300]
    """
    raw = np.frombuffer(data, np.uint8)
    last = raw < 0x80
    stops = np.flatnonzero(last)
    if len(raw) and (not len(stops) or stops[-1] != len(raw) - 1):
        raise RecordError("a list of integers ends inside a number")
    if count is not None and len(stops) != count:
        raise RecordError(f"a list of integers has {len(stops):,} values where {count:,} are due")
    if len(stops) == len(raw):  # flags and text: every number is one byte
        return raw[start:stop].astype(np.int64)
    if start or stop is not None:
        first = stops[start - 1] + 1 if start else 0
        stops = stops[start:stop] - first
        raw = raw[first : first + stops[-1] + 1] if len(stops) else raw[:0]
        if not len(stops):
            return np.zeros(0, np.int64)
    starts = np.concatenate(([0], stops[:-1] + 1))
    widths = stops - starts + 1
    widest = int(widths.max())
    if widest > 10:
        raise RecordError("a list of integers holds a number of more than 10 bytes")
    values = np.zeros(len(stops), np.uint64)
    for k in range(widest):
        wide = widths > k
        digits = (raw[starts[wide] + k] & 0x7F).astype(np.uint64)
        values[wide] |= digits << np.uint64(7 * k)
    return values.view(np.int64)


def decode_tensor(
    data: bytes, field: Field, shape: tuple[int | None, ...], limit: int = MAX_TENSOR_BYTES
) -> NDArray[Any]:
    """One `bytes`- or `zlib`-encoded tensor of `shape`, in which one dimension may be unknown."""
    dtype = field.np_dtype
    known = math.prod(size for size in shape if size is not None)
    open_ended = None in shape
    expected = known * dtype.itemsize
    if expected > limit:
        raise ImageError(
            f"a tensor of shape {shape} and type {dtype} has {expected:,} bytes, over the limit "
            f"of {limit:,}",
            field=field.key,
            remedy="The record is damaged, or raise the limit (MAX_TENSOR_BYTES)",
        )
    if field.encoding == "zlib":
        data = _inflate(data, limit if open_ended else expected, field)
    if open_ended:
        whole = (bool(expected) and len(data) % expected == 0) or (not expected and not data)
    else:
        whole = len(data) == expected
    if not whole:
        raise ImageError(
            f"an encoded tensor has {len(data):,} bytes, which shape {shape} of {dtype} cannot",
            field=field.key,
            remedy="The record is damaged; `headrace verify` checks its checksum",
        )
    sizes = [-1 if size is None else size for size in shape]
    if open_ended and not expected:
        sizes = [0 if size == -1 else size for size in sizes]
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(sizes)


def _inflate(data: bytes, limit: int, field: Field) -> bytes:
    """Decompress, but never to more than `limit` bytes."""
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ImageError(
            f"a zlib-encoded tensor cannot be decompressed: {error}",
            field=field.key,
            remedy="The record is damaged; `headrace verify` checks its checksum",
        ) from None
    if len(out) > limit:
        raise ImageError(
            f"a zlib-encoded tensor expands to more than the {limit:,} bytes it may have",
            field=field.key,
            remedy="The record is damaged or malicious; quarantine the episode "
            "(`headrace verify --quarantine`)",
        )
    if not stream.eof:
        raise ImageError(
            "a zlib-encoded tensor is cut off",
            field=field.key,
            remedy="The record is damaged; `headrace verify` checks its checksum",
        )
    return out
