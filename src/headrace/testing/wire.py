"""One episode as a `tf.train.Example` on the wire, as TFDS serialises it.

Values are given as they lie on disk, column by column: below `Steps` or a `Sequence` every leaf
holds one entry per element, so a state of width 7 is an array [steps, 7], an image a list of
encoded bytes, and a ragged field a list of lists. Everything is streamed out as chunks, so an
episode's images are never copied into one buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.testing import features as f

__all__ = ["Values", "encode_example", "encode_varints", "varint"]

Values: TypeAlias = dict[str, Any]
_Chunks: TypeAlias = list[bytes]

_BYTES, _FLOATS, _INTS = b"\x0a", b"\x12", b"\x1a"  # which list of the Feature message is set
_FIRST = b"\x0a"  # field 1, length-delimited
_SECOND = b"\x12"  # field 2, length-delimited


def encode_example(features: f.FeaturesDict, values: Values, order: int = 0) -> _Chunks:
    """An episode as the chunks of a serialised Example.

    `order` picks the order of the map entries, which the format leaves open and which differs
    from record to record in real files.
    """
    entries = sorted(
        _entries(features, values, "", 0),
        key=lambda entry: (zlib.crc32(entry[0].encode(), order), entry[0]),
    )
    chunks: _Chunks = []
    for key, kind, payload in entries:
        name = key.encode()
        feature = _delimited(kind, payload)
        entry = [_FIRST, varint(len(name)), name, *_delimited(_SECOND, feature)]
        chunks += _delimited(_FIRST, entry)
    return _delimited(_FIRST, chunks)


def varint(value: int) -> bytes:
    """One non-negative integer, seven bits a byte, least significant first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varints(values: npt.NDArray[Any]) -> bytes:
    """An array of integers as back-to-back varints; negative ones take ten bytes.

    >>> encode_varints(np.array([1, 300, -1])).hex()
    '01ac02ffffffffffffffffff01'
    """
    flat = values.reshape(-1)
    bits = flat if flat.dtype == np.uint64 else flat.astype(np.int64)
    bits = bits.view(np.uint64)
    if not bits.size or int(bits.max()) < 0x80:
        return bits.astype(np.uint8).tobytes()
    sizes = np.ones(bits.size, np.int64)
    for shift in range(7, 64, 7):
        sizes += bits >= np.uint64(1 << shift)
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint8)
    for i in range(int(sizes.max())):
        here = sizes > i
        low = (bits[here] >> np.uint64(7 * i)).astype(np.uint8) & 0x7F
        out[starts[here] + i] = low | ((sizes[here] > i + 1).astype(np.uint8) << 7)
    return out.tobytes()


def _entries(
    feature: f.Feature, value: Any, key: str, depth: int
) -> Iterator[tuple[str, bytes, _Chunks]]:
    """Every map entry of a feature: its key, the kind of list, and the list's chunks."""
    match feature:
        case f.FeaturesDict(features):
            if set(features) != set(value):
                missing = sorted(set(features) ^ set(value))
                raise UsageError(f"values and features differ in {missing}", field=key or None)
            for name, inner in features.items():
                yield from _entries(inner, value[name], f"{key}/{name}" if key else name, depth)
        case f.Steps(inner) | f.Sequence(inner):
            yield from _entries(inner, value, key, depth + 1)
        case f.Tensor() | f.Scalar() | f.Text() | f.Image():
            items, row_lengths = _flatten(value, depth)
            if depth < 2:
                yield from _leaf(feature, items, key)
                return
            for level, lengths in enumerate(row_lengths):
                yield f"{key}/ragged_row_lengths_{level}", _INTS, _ints(np.array(lengths, np.int64))
            yield from _leaf(feature, items, f"{key}/ragged_flat_values")


def _flatten(value: Any, depth: int) -> tuple[Any, list[list[int]]]:
    """The values of a leaf in one list, and the lengths of its rows below the outermost."""
    if depth == 0:
        return [value], []
    lengths: list[list[int]] = []
    for _ in range(depth - 1):
        lengths.append([len(row) for row in value])
        value = [item for row in value for item in row]
    return value, lengths


def _leaf(
    feature: f.Tensor | f.Scalar | f.Text | f.Image, items: Any, key: str
) -> Iterator[tuple[str, bytes, _Chunks]]:
    match feature:
        case f.Text():
            yield key, _BYTES, _strings(items)
        case f.Image():
            yield key, _BYTES, _blobs(items)
        case f.Scalar(dtype):
            yield key, *_numbers(items, (), dtype, key)
        case f.Tensor(shape, "string"):
            flat = np.asarray(items, object).reshape(-1).tolist() if shape else items
            yield key, _BYTES, _strings(flat)
        case f.Tensor(shape, dtype, "none"):
            yield key, *_numbers(items, shape, dtype, key)
        case f.Tensor(shape, dtype, encoding):
            arrays = [_checked(item, shape, dtype, key) for item in items]
            blobs = [array.tobytes() for array in arrays]
            if encoding == "zlib":
                blobs = [zlib.compress(blob) for blob in blobs]
            if shape.count(None) < 2:
                yield key, _BYTES, _blobs(blobs)
                return
            shapes = np.array([array.shape for array in arrays], np.int64)
            yield f"{key}/shape", _INTS, _ints(shapes)
            yield f"{key}/value", _BYTES, _blobs(blobs)


def _checked(value: Any, shape: f.Shape, dtype: str, key: str) -> npt.NDArray[Any]:
    array = np.asarray(value, dtype)
    known = [want in (None, have) for want, have in zip(shape, array.shape, strict=False)]
    if array.ndim != len(shape) or not all(known):
        raise UsageError(f"shape {array.shape} does not fit {shape}", field=key)
    return array


def _numbers(items: Any, shape: f.Shape, dtype: str, key: str) -> tuple[bytes, _Chunks]:
    """Numbers without encoding: floats of any width as float32, bools and ints as varints."""
    array = np.asarray(items, dtype)
    if len(items):
        _checked(array[0], shape, dtype, key)
    if array.dtype.kind != "f":
        return _INTS, _ints(array)
    data = array.astype("<f4").tobytes()
    return _FLOATS, [_FIRST, varint(len(data)), data] if data else []


def _ints(array: npt.NDArray[Any]) -> _Chunks:
    data = encode_varints(array)
    return [_FIRST, varint(len(data)), data] if data else []


def _strings(items: Sequence[str | bytes]) -> _Chunks:
    return _blobs([item.encode() if isinstance(item, str) else item for item in items])


def _blobs(items: Sequence[bytes]) -> _Chunks:
    return [chunk for item in items for chunk in (_FIRST, varint(len(item)), item)]


def _delimited(tag: bytes, chunks: _Chunks) -> _Chunks:
    return [tag, varint(sum(map(len, chunks))), *chunks]
