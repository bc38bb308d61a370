"""A TensorFlow-free writer of RLDS datasets in the layout of TFDS.

A dataset is written into a hidden folder beside its target and renamed into place when its
metadata is complete, so a killed run never leaves a folder that looks like a dataset.

    write_dataset(Path("data/mine/1.0.0"), features, {"train": [[episode, ...], ...]})
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import crc32c

from headrace.errors import DatasetError
from headrace.testing.features import Dialect, FeaturesDict, to_json
from headrace.testing.wire import Values, encode_example

__all__ = [
    "ShardReport",
    "clear_errors",
    "masked_crc",
    "shard_name",
    "staged",
    "write_dataset",
    "write_metadata",
    "write_record",
    "write_shard",
]

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
    """Append one TFRecord; returns the length of its payload."""
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
    path: Path, features: FeaturesDict, episodes: Iterable[Values], first: int = 0
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
    features: FeaturesDict,
    splits: Mapping[str, Sequence[ShardReport]],
    *,
    name: str,
    version: str,
    description: str = "",
    module: str = "headrace.testing",
    dialect: Dialect = "current",
) -> None:
    """Write `features.json` and, last, `dataset_info.json`."""
    schema = to_json(features, dialect)
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
        temporary = folder / "dataset_info.json.incomplete"
        temporary.write_text(json.dumps(info, indent=2, sort_keys=True))
        temporary.replace(folder / "dataset_info.json")


def write_dataset(
    target: Path,
    features: FeaturesDict,
    splits: Mapping[str, Sequence[Iterable[Values]]],
    *,
    name: str | None = None,
    dialect: Dialect = "current",
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
    """A hidden folder that becomes `target` when the block ends well, and vanishes otherwise."""
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
    """Turn what the operating system says about a file into headrace's own error."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DatasetError(
            "the disk is full" if full else f"cannot write: {error.strerror or error}",
            file=str(path),
            remedy="Free some space or write fewer episodes; nothing half-written was left behind"
            if full
            else "Choose another folder or mend its permissions",
        ) from error


def _move_into_place(stage: Path, target: Path) -> None:
    """Two renames where a target exists: in between there is no dataset, never a mixed one."""
    if target.exists():
        old = stage.with_name(f"{stage.name}-old")
        target.rename(old)
        stage.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        stage.rename(target)


def _sweep(target: Path) -> None:
    """Remove what killed runs on this machine left behind."""
    prefix = f".{target.name}{_STAGE}-{socket.gethostname()}-"
    for left in target.parent.glob(f"{prefix}*"):
        process = left.name.removeprefix(prefix).partition("-")[0]
        if process.isdecimal() and not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
