"""A TensorFlow-free writer of RLDS datasets in the layout of TFDS.

    write_dataset(Path("data/mine/1.0.0"), features, {"train": [[episode, ...], ...]})

A dataset is written into a hidden folder beside its target and renamed into place when its
metadata is complete, so a killed run never leaves a folder that looks like a dataset.

Values are given as they lie on disk, column by column: below `Steps` or a `Sequence` every leaf
holds one entry per element, so a state of width 7 is an array [steps, 7], an image a list of
encoded bytes, and a ragged field a list of lists. Everything is streamed out as chunks, so an
episode's images are never copied into one buffer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import crc32c
import numpy as np
import numpy.typing as npt
import psutil

from headrace.errors import DatasetError, UsageError
from headrace.files import atomic_write
from headrace.testing import features as f

Values: TypeAlias = dict[str, Any]
_Chunks: TypeAlias = list[bytes]

_BYTES, _FLOATS, _INTS = b"\x0a", b"\x12", b"\x1a"  # which list of the Feature message is set
_FIRST = b"\x0a"  # field 1, length-delimited
_SECOND = b"\x12"  # field 2, length-delimited

_STAGE = ".incomplete"


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What went into a shard."""

    records: int  #: episodes
    bytes: int  #: of the records, without their framing, as TFDS counts `numBytes`


def masked_crc(crc: int) -> int:
    """The CRC as TFRecord files store it: rotated and offset, so that CRCs can be checksummed."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(file: BinaryIO, chunks: Sequence[bytes]) -> int:
    """Append one TFRecord; the length of its payload."""
    size = sum(map(len, chunks))
    length = size.to_bytes(8, "little")
    file.write(length + masked_crc(crc32c.crc32c(length)).to_bytes(4, "little"))
    crc = 0
    for chunk in chunks:
        crc = crc32c.crc32c(chunk, crc)
        file.write(chunk)
    file.write(masked_crc(crc).to_bytes(4, "little"))
    return size


def write_shard(
    path: Path, features: f.FeaturesDict, episodes: Iterable[Values], first: int = 0
) -> ShardReport:
    """Write a TFRecord file, one episode at a time; `first` numbers them for the entry order."""
    records = size = 0
    with clear_errors(path), path.open("wb", buffering=1 << 20) as file:
        for records, values in enumerate(episodes, 1):
            size += write_record(file, encode_example(features, values, first + records))
    return ShardReport(records, size)


def shard_name(name: str, split: str, index: int, count: int) -> str:
    """The file name of a shard.

    >>> shard_name("bridge", "train", 0, 4)
    'bridge-train.tfrecord-00000-of-00004'
    """
    return f"{name}-{split}.tfrecord-{index:05d}-of-{count:05d}"


def write_metadata(
    folder: Path,
    features: f.FeaturesDict,
    splits: Mapping[str, Sequence[ShardReport]],
    *,
    name: str,
    version: str,
    description: str = "",
    module: str = "headrace.testing",
    dialect: f.Dialect = "current",
) -> None:
    """Write `features.json` and, last, `dataset_info.json`."""
    schema = f.to_json(features, dialect)
    info: dict[str, Any] = {
        "description": description,
        "fileFormat": "tfrecord",
        "moduleName": module,
        "name": name,
        "splits": [
            {
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "name": split,
                "numBytes": str(sum(shard.bytes for shard in shards)),
                "shardLengths": [str(shard.records) for shard in shards],
            }
            for split, shards in splits.items()
        ],
        "version": version,
    }
    with clear_errors(folder):
        (folder / "features.json").write_text(json.dumps(schema, indent=4, sort_keys=True))
        atomic_write(folder / "dataset_info.json", json.dumps(info, indent=2, sort_keys=True))


def write_dataset(
    target: Path,
    features: f.FeaturesDict,
    splits: Mapping[str, Sequence[Iterable[Values]]],
    *,
    name: str | None = None,
    dialect: f.Dialect = "current",
) -> None:
    """Write a whole dataset to `.../name/version`: for each split, for each shard, its episodes.

    The target is replaced if it exists.
    """
    name = name or target.parent.name
    with staged(target) as folder:
        reports = {}
        for split, shards in splits.items():
            paths = [folder / shard_name(name, split, i, len(shards)) for i in range(len(shards))]
            reports[split] = [
                write_shard(path, features, episodes)
                for path, episodes in zip(paths, shards, strict=True)
            ]
        write_metadata(folder, features, reports, name=name, version=target.name, dialect=dialect)


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A hidden folder that becomes `target` if the block succeeds, and is removed otherwise."""
    owner = f"{socket.gethostname()}-{os.getpid()}"
    stage = target.parent / f".{target.name}{_STAGE}-{owner}-{uuid.uuid4().hex[:8]}"
    with clear_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        stage.mkdir()
    try:
        yield stage
        with clear_errors(target):
            _move_into_place(stage, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        with contextlib.suppress(OSError):
            target.parent.rmdir()  # if this run made it and failed


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` about a file into headrace's own error."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DatasetError(
            "the disk is full" if full else f"cannot write: {error.strerror or error}",
            file=str(path),
            remedy="Free some space or write fewer episodes; nothing half-written was left behind"
            if full
            else "Choose another folder, or correct its permissions",
        ) from error


def _move_into_place(stage: Path, target: Path) -> None:
    """Two renames where a target exists: in between there is no dataset, never a mixed one."""
    old = stage.with_name(f"{stage.name}-old")
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    stage.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what killed runs on this machine left behind."""
    prefix = f".{target.name}{_STAGE}-{socket.gethostname()}-"
    for left in target.parent.glob(f"{prefix}*"):
        process = left.name.removeprefix(prefix).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)


# -- an episode as a tf.train.Example, as TFDS serialises it ---------------------------------------


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
    return _FLOATS, _blobs([data] if data else [])


def _ints(array: npt.NDArray[Any]) -> _Chunks:
    data = encode_varints(array)
    return _blobs([data] if data else [])


def _strings(items: Sequence[str | bytes]) -> _Chunks:
    return _blobs([item.encode() if isinstance(item, str) else item for item in items])


def _blobs(items: Sequence[bytes]) -> _Chunks:
    return [chunk for item in items for chunk in (_FIRST, varint(len(item)), item)]


def _delimited(tag: bytes, chunks: _Chunks) -> _Chunks:
    return [tag, varint(sum(map(len, chunks))), *chunks]
