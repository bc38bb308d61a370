"""Where a catalog lies, and the small JSON file that makes it one.

The manifest says what the catalog was built from and which table holds it. Replacing it by a rename
is the one moment at which a new catalog comes into being.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import CatalogError
from headrace.files import atomic_write, sync_folder

FORMAT_VERSION = 2  #: raised when a catalog written before can no longer be read
LEVELS = ("episodes", "frames")  #: each knows more than the one before
MANIFEST = "manifest.json"
MISSING = -1  #: size of a shard that was not there
#: What every report of a catalog without checksums says.
UNCHECKED = "frames are not checked (indexed with --quick)"
_NAMED = 5  # how many files a message names before it only counts

# -- where ---------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """`HEADRACE_CACHE`, else `headrace` in the user's cache folder."""
    if chosen := os.environ.get("HEADRACE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace"


def candidates(dataset: Path) -> list[Path]:
    """Places for a dataset's catalog, best first: beside the data, then the cache."""
    path = dataset.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    cached = cache_folder() / "catalogs" / f"{path.parent.name}-{path.name}-{digest}"
    return [dataset / ".headrace", cached]


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is created if need be.

    A folder without any write permission counts as read-only for root as well: somebody took the
    permissions away because no files should be made there.
    """
    parent = folder if folder.exists() else folder.parent
    if parent.exists() and not parent.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        return False
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def cannot_write(error: OSError, path: str) -> CatalogError:
    """The operating system's complaint about a catalog's own files, as an error with a remedy."""
    return CatalogError(
        f"the catalog cannot be written: {error.strerror}",
        file=path,
        remedy="Free some space (a catalog needs about 10 bytes per frame and camera), or put it "
        "elsewhere: HEADRACE_CACHE=/other/disk headrace index --cache PATH",
    )


def some_of(names: Sequence[str], separator: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> some_of(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return separator.join(names[:_NAMED]) + more


# -- what ----------------------------------------------------------------------------------------


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
        """Whether the shard is still what was indexed."""
        return self.size == size and (size == MISSING or self.mtime_ns == mtime_ns)


@dataclass(frozen=True, slots=True)
class Damage:
    """An episode that must not be used."""

    file: str  #: its shard
    record: int  #: its number in the shard
    offset: int  #: where in the file the problem is
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
    checksums: bool = False  #: whether the table has the checksum of every frame
    format_version: int = FORMAT_VERSION

    def with_quarantine(self, damage: list[Damage]) -> Manifest:
        """The same with more episodes quarantined."""
        known = {(entry.file, entry.record): entry for entry in (*self.quarantine, *damage)}
        return replace(self, quarantine=tuple(known.values()))


def read_manifest(folder: Path, *, outdated: bool = False) -> Manifest | None:
    """The manifest in a catalog's folder; None if there is none that this version can use.

    With `outdated`, one of another format version instead, as far as it can be understood.
    """
    try:
        values: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if (values["format_version"] != FORMAT_VERSION) != outdated:
            return None
        values["shards"] = tuple(ShardStamp(*row) for row in values["shards"])
        values["quarantine"] = tuple(Damage(*row) for row in values["quarantine"])
        return Manifest(**values)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in place, atomically."""
    values = asdict(manifest)
    values["shards"] = [astuple(stamp) for stamp in manifest.shards]
    values["quarantine"] = [astuple(damage) for damage in manifest.quarantine]
    atomic_write(folder / MANIFEST, json.dumps(values, separators=(",", ":")))
    sync_folder(folder)
