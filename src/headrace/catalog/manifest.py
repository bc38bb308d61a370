"""The small JSON file that makes a catalog: what it was built from and which table holds it.

Replacing it by a rename is the one moment at which a new catalog comes into being.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = [
    "FORMAT_VERSION",
    "LEVELS",
    "Damage",
    "Manifest",
    "ShardStamp",
    "read_manifest",
    "write_manifest",
]

FORMAT_VERSION = 1  #: raised when a catalog written before can no longer be read
LEVELS = ("episodes", "frames")  #: the second knows more
MANIFEST = "manifest.json"
MISSING = -1  #: size of a shard that was not there


@dataclass(frozen=True, slots=True)
class ShardStamp:
    """A shard as it was when it was indexed."""

    split: str  #: split it belongs to
    file: str  #: name relative to the dataset's folder
    size: int  #: bytes; MISSING if it was not there and its episodes are quarantined
    mtime_ns: int  #: time of last change
    episodes: int  #: rows of the table that are its episodes
    steps: int  #: steps of all of them

    def matches(self, size: int, mtime_ns: int) -> bool:
        """Whether the shard still is what was indexed."""
        return self.size == size and (size == MISSING or self.mtime_ns == mtime_ns)


@dataclass(frozen=True, slots=True)
class Damage:
    """An episode that must not be used."""

    file: str  #: its shard
    record: int  #: its number in the shard
    offset: int  #: where in the file the trouble is
    problem: str  #: what is wrong


@dataclass(frozen=True)
class Manifest:
    """What a catalog was built from and where its table is."""

    name: str
    version: str
    level: str
    metadata_hash: str
    table: str  #: file name of the Arrow table beside the manifest
    shards: tuple[ShardStamp, ...]
    quarantine: tuple[Damage, ...] = ()
    format_version: int = FORMAT_VERSION

    def with_quarantine(self, damage: list[Damage]) -> Manifest:
        """The same with more episodes quarantined."""
        known = {(entry.file, entry.record): entry for entry in self.quarantine}
        known |= {(entry.file, entry.record): entry for entry in damage}
        return replace(self, quarantine=tuple(known.values()))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in a catalog's folder; None if there is none that this version can use."""
    try:
        values: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if values["format_version"] != FORMAT_VERSION:
            return None
        values["shards"] = tuple(ShardStamp(*row) for row in values["shards"])
        values["quarantine"] = tuple(Damage(*row) for row in values["quarantine"])
        return Manifest(**values)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in place: written aside, synced, renamed."""
    values = asdict(manifest)
    values["shards"] = [list(asdict(stamp).values()) for stamp in manifest.shards]
    values["quarantine"] = [list(asdict(damage).values()) for damage in manifest.quarantine]
    aside = folder / f"{MANIFEST}.tmp-{os.getpid()}"
    try:
        with aside.open("w", encoding="utf-8") as file:
            json.dump(values, file, indent=None, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / MANIFEST)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
