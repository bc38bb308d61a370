"""An RLDS dataset's folder: its metadata and the shards that it lists."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.errors import DatasetError
from headrace.formats.features import (
    COPY_AGAIN,
    FEATURES_FILE,
    INFO_FILE,
    Schema,
    read_features,
    read_metadata,
)

_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_SEARCH_DEPTH = 4  # root / dataset / config / version


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard as the metadata lists it."""

    split: str  #: split it belongs to
    file: str  #: name relative to the dataset's folder
    episodes: int  #: records it should hold


@dataclass(frozen=True)
class RldsDataset:
    """The metadata of a dataset's folder. No shard has been read."""

    path: Path  #: the version folder
    name: str  #: TFDS name
    version: str  #: TFDS version
    shards: tuple[ShardFile, ...]  #: split by split, in the order of the metadata
    templates: tuple[tuple[str, str], ...]  #: split name and the template of its files' names
    metadata_hash: str  #: of both metadata files; a catalog is rebuilt when it changes

    @property
    def title(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"

    @cached_property
    def schema(self) -> Schema:
        """The fields of its episodes."""
        try:
            return read_features(self.path / FEATURES_FILE)
        except DatasetError as error:
            raise error.within(dataset=self.title) from None

    @property
    def splits(self) -> dict[str, list[int]]:
        """Split name to episodes per shard."""
        lengths: dict[str, list[int]] = {split: [] for split, _ in self.templates}
        for shard in self.shards:
            lengths[shard.split].append(shard.episodes)
        return lengths

    def unlisted_shards(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that look like shards but are not in the metadata."""
        listed = {shard.file for shard in self.shards}
        number = "\x01"  # stands for any number while the rest of the name is escaped
        looks = [
            re.escape(_fill(template, self.name, split, number, number)).replace(number, r"\d{5,}")
            for split, template in self.templates
        ]
        return sorted(
            name
            for name in names
            if name not in listed and any(re.fullmatch(look, name) for look in looks)
        )


def read_dataset(path: str | Path) -> RldsDataset:
    """Read the metadata of the dataset in a version folder, or of the only one below a folder."""
    path = _folder(path)
    if not (path / INFO_FILE).exists():
        below = list(_version_folders(path, 0))
        if len(below) > 1:
            names = ", ".join(str(folder.relative_to(path)) for folder in below[:5])
            raise DatasetError(
                f"found {len(below)} datasets: {names}{' ...' if below[5:] else ''}",
                file=str(path),
                remedy="Open one of them",
            )
        path = below[0] if below else path
    info_bytes = read_metadata(path / INFO_FILE)
    features_bytes = read_metadata(path / FEATURES_FILE)
    try:
        info = json.loads(info_bytes)
        name, version = str(info["name"]), str(info["version"])
        kind = str(info.get("fileFormat") or "tfrecord").lower()
        splits = [_split(entry, name) for entry in info.get("splits", [])]
        shards = tuple(shard for _, _, shards in splits for shard in shards)
    except DatasetError as error:
        raise error.within(file=str(path / INFO_FILE)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(
            f"{INFO_FILE} cannot be parsed: {type(error).__name__} {error}",
            file=str(path / INFO_FILE),
            remedy=COPY_AGAIN,
        ) from None
    if kind not in ("tfrecord", "file_format.tfrecord"):
        raise DatasetError(
            f"the shards are {kind!r} files, not TFRecords",
            dataset=f"{name} {version}",
            file=str(path / INFO_FILE),
            remedy="headrace reads TFRecord datasets: prepare it with file_format='tfrecord'",
        )
    return RldsDataset(
        path=path,
        name=name,
        version=version,
        shards=shards,
        templates=tuple((split, template) for split, template, _ in splits),
        metadata_hash=hashlib.sha256(info_bytes + b"\0" + features_bytes).hexdigest(),
    )


def _split(entry: dict[str, Any], dataset: str) -> tuple[str, str, list[ShardFile]]:
    """Name, file name template and shards of one split."""
    split = str(entry["name"])
    if "shardLengths" not in entry:
        raise DatasetError(
            f"split {split!r} has no shardLengths, so its shards are unknown",
            dataset=dataset,
            remedy="The metadata is incomplete or from a very old TFDS: "
            "write it again with `tfds.folder_dataset.write_metadata`",
        )
    template = str(entry.get("filepathTemplate") or _DEFAULT_TEMPLATE)
    lengths = [int(length) for length in entry["shardLengths"]]
    digits = max(5, len(str(len(lengths))))
    names = [
        _fill(template, dataset, split, f"{index:0{digits}d}", f"{len(lengths):0{digits}d}")
        for index in range(len(lengths))
    ]
    if any(length < 0 for length in lengths) or len(set(names)) < len(names):
        raise ValueError(f"split {split!r}: impossible shardLengths or filepathTemplate")
    for name in names:
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or "\0" in name:
            raise DatasetError(
                f"filepathTemplate {template!r} of split {split!r} points outside the dataset's "
                f"folder: {name!r}",
                dataset=dataset,
                remedy="Shards must be in the folder of their metadata; correct the template",
            )
    shards = [ShardFile(split, name, size) for name, size in zip(names, lengths, strict=True)]
    return split, template, shards


def _fill(template: str, dataset: str, split: str, index: str, total: str) -> str:
    """A TFDS file name template with its placeholders filled in."""
    values = {
        "{DATASET}": dataset,
        "{SPLIT}": split,
        "{FILEFORMAT}": "tfrecord",
        "{SHARD_INDEX}": index,
        "{NUM_SHARDS}": total,
        "{SHARD_X_OF_Y}": f"{index}-of-{total}",
    }
    return re.sub(r"\{[A-Z_]+\}", lambda match: values.get(match[0], match[0]), template)


def _folder(path: str | Path) -> Path:
    """A path that must be a local folder."""
    if "://" in str(path):
        raise DatasetError(
            "this release reads local folders only",
            file=str(path),
            remedy="Copy the dataset to a local disk, for instance with `gcloud storage cp -r`",
        )
    path = Path(path)
    if not path.is_dir():
        raise DatasetError(
            "no such folder" if not path.exists() else "not a folder",
            file=str(path),
            remedy="Give a dataset's version folder, such as .../bridge/0.1.0, a dataset's folder, "
            "or a root of many",
        )
    return path


def find_datasets(path: str | Path) -> list[Path]:
    """The version folders at or below a path: one dataset, its versions, or a root of many."""
    root = _folder(path)
    found = list(_version_folders(root, 0))
    if not found:
        raise DatasetError(
            "no TFDS dataset here",
            file=str(root),
            remedy=f"A dataset is a folder <name>/<version>/ with {INFO_FILE}, {FEATURES_FILE} "
            "and TFRecord shards, a set of tables a folder of *.parquet files; try `headrace synth "
            "DIR` to generate some",
        )
    return found


def _version_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DatasetError(
            f"the folder cannot be read: {error.strerror}", file=str(folder)
        ) from None
    names = {entry.name for entry in entries}
    if INFO_FILE in names or FEATURES_FILE in names or any(".tfrecord" in name for name in names):
        yield folder  # even if incomplete: reading it says what is missing
        return
    if depth < _SEARCH_DEPTH:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _version_folders(entry, depth + 1)
