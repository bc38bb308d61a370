"""Where a dataset's catalog lies: beside the data if it can be written there, else in a cache."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

__all__ = ["FOLDER", "cache_folder", "candidates", "is_writable"]

FOLDER = ".headrace"  #: name of the catalog's folder inside a dataset's version folder


def cache_folder() -> Path:
    """`HEADRACE_CACHE`, else `headrace` in the user's cache folder."""
    if chosen := os.environ.get("HEADRACE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace"


def candidates(dataset: Path) -> list[Path]:
    """Places for a dataset's catalog, best first."""
    path = dataset.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    cached = cache_folder() / "catalogs" / f"{path.parent.name}-{path.name}-{digest}"
    return [dataset / FOLDER, cached]


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is created if need be.

    A folder without any write permission counts as read-only for root as well: whoever took the
    permissions away did not want files there.
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
