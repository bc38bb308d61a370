"""Prepared row groups on disk, as memory-mapped records: decoded once, shared by all processes.

Mapped pages belong to the page cache, not to a process, and a window touches only its own pages:
a global shuffle then reads the bytes of a window instead of decoding a whole row group. Files are
written atomically, so a row group is there as a whole or not at all. Their names contain the stamp
of the Parquet file: row groups of a file that changed are not found, and are removed.

Everything here can be removed at any time; it is made again when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.files import replacing
from headrace.formats.parquet.columns import Records, record_type
from headrace.formats.parquet.files import ParquetStamp, RowGroups

_MAGIC = b"hrrows01"
_HEAD = struct.Struct("<8sQ")  # magic, bytes of the description that follows
_ALIGN = 64
_SUFFIX = ".rows"
_UNUSABLE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system cannot be written",
    errno.EACCES: "the folder cannot be written",
    errno.EPERM: "the folder cannot be written",
}


class StoreUnusable(Exception):
    """Nothing more can be stored; the message says why."""


class RowGroupStore:
    """A folder of row groups, of at most `limit` bytes if that is given."""

    def __init__(
        self,
        folder: Path,
        files: Sequence[ParquetStamp],
        groups: RowGroups,
        limit: int | None = None,
    ) -> None:
        self.folder = folder
        self.limit = limit
        self._names = [_name(files[group.file], group.first, group.stop) for group in groups]
        self._lock_file: int | None = None

    def __repr__(self) -> str:
        return f"<RowGroupStore {self.folder}, {len(self._names)} row groups>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock_file": None}

    def __del__(self, _close: Any = os.close) -> None:  # `os` may be gone by then
        if getattr(self, "_lock_file", None) is not None:
            _close(self._lock_file)

    def missing(self) -> list[int]:
        """Numbers of the row groups that are not stored yet."""
        present = self._present()
        return [number for number, name in enumerate(self._names) if name not in present]

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all row groups in the folder."""
        return sum(self._present().values())

    def find(self, number: int) -> Records | None:
        """A row group, mapped; None if it is missing or incomplete."""
        path = self.folder / self._names[number]
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            records = _records(mapped)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return None
        # Windows are anywhere: reading ahead would read twenty times as much.
        mapped.madvise(mmap.MADV_RANDOM)
        if self.limit is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # recently used: the last to be removed
        return records

    def put(self, number: int, records: Records) -> None:
        """Store a row group, or raise `StoreUnusable`."""
        path = self.folder / self._names[number]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(_head(records))
                file.write(records.data.reshape(-1).data)
        except OSError as error:
            why = _UNUSABLE.get(error.errno or 0, error.strerror)
            raise StoreUnusable(f"{why}: {self.folder}") from None
        self._remove_stale(path.name)
        self._trim(keep=path.name)

    @contextmanager
    def locked(self, number: int) -> Iterator[None]:
        """Hold the lock of one row group, so that no other process makes it at the same time."""
        try:
            if self._lock_file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._lock_file = os.open(self.folder / "lock", flags, 0o644)
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX, 1, number)
        except OSError:  # no folder, or no locks there: two processes may do the same work
            yield
            return
        try:
            yield
        finally:
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, number)

    def remove(self) -> int:
        """Remove all row groups; returns the bytes that were freed."""
        freed = 0
        for name, size in self._present().items():
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()
                freed += size
        return freed

    def _present(self) -> dict[str, int]:
        try:
            with os.scandir(self.folder) as entries:
                return {e.name: e.stat().st_size for e in entries if e.name.endswith(_SUFFIX)}
        except OSError:
            return {}

    def _remove_stale(self, name: str) -> None:
        """Remove row groups of the same Parquet file from before it changed."""
        file, stamp, _ = name.split("-", 2)
        for other in self._present():
            if other.startswith(f"{file}-") and not other.startswith(f"{file}-{stamp}-"):
                (self.folder / other).unlink(missing_ok=True)

    def _trim(self, keep: str) -> None:
        """Remove the least recently used beyond the limit; processes that map them keep them."""
        if self.limit is None:
            return
        present = self._present()
        surplus = sum(present.values()) - self.limit
        if surplus <= 0:
            return
        aged = []
        for name in present:
            with contextlib.suppress(OSError):
                aged.append(((self.folder / name).stat().st_mtime_ns, name))
        for _, name in sorted(aged):
            if surplus <= 0:
                return
            if name != keep:
                (self.folder / name).unlink(missing_ok=True)
                surplus -= present[name]


def _name(file: ParquetStamp, first: int, stop: int) -> str:
    path = hashlib.sha256(os.fsencode(os.path.realpath(file.path))).hexdigest()[:16]
    stamp = hashlib.sha256(f"{file.size} {file.mtime_ns}".encode()).hexdigest()[:12]
    return f"{path}-{stamp}-{first}-{stop}{_SUFFIX}"


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _head(records: Records) -> bytes:
    """The header of a file; the records follow at the next whole cache line."""
    fields = [
        [name, records.dtype[name].base.str, list(records.dtype[name].shape)]
        for name in records.dtype.names or ()
    ]
    text = json.dumps({"fields": fields, "rows": len(records)}).encode()
    head = _HEAD.pack(_MAGIC, len(text)) + text
    return head.ljust(_aligned(len(head)), b"\0")


def _records(mapped: mmap.mmap) -> Records:
    magic, length = _HEAD.unpack_from(mapped)
    if magic != _MAGIC:
        raise ValueError("not a stored row group")
    about = json.loads(mapped[_HEAD.size : _HEAD.size + length])
    dtype = record_type(tuple((name, kind, tuple(shape)) for name, kind, shape in about["fields"]))
    start = _aligned(_HEAD.size + length)
    if len(mapped) != start + about["rows"] * dtype.itemsize:
        raise ValueError("incomplete row group")
    data = np.frombuffer(mapped, np.uint8, offset=start)
    return Records(dtype, data.reshape(about["rows"], dtype.itemsize))
