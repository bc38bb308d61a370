"""Byte ranges of local files, by `pread` over a bounded set of open files.

Safe to share between threads. A range that the file does not have raises: a caller never gets
fewer bytes than requested. A file that is not the one that was indexed (`ByteRange.stamp`) raises
too: a caller never gets bytes of another file of the same name.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from headrace.errors import DatasetError

Stamp = tuple[int, int]  #: size and mtime_ns of a file
_Key = tuple[str, Stamp | None]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file."""

    path: str  #: the file
    offset: int  #: first byte
    length: int  #: number of bytes
    stamp: Stamp | None = None  #: size and mtime_ns the file must have, if that is known


@dataclass(frozen=True, slots=True)
class LocalFilesStatistics:
    """What a `LocalFiles` has done so far."""

    reads: int  #: ranges read
    bytes: int  #: bytes read
    open_files: int  #: files open now
    opened: int  #: files opened so far


class _Handle:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0


class LocalFiles:
    """Reads byte ranges of local files, keeping the most recently used ones open."""

    def __init__(self, max_open: int | None = None) -> None:
        if max_open is None:
            # Half of what the process may open: mixtures have thousands of shards, and the
            # program around us needs files too.
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            max_open = max(16, min(soft // 2, 4096))
        self._max_open = max_open
        self._handles: OrderedDict[_Key, _Handle] = OrderedDict()
        # Reentrant: the garbage collector may close a thread's leases while we hold it.
        self._lock = threading.RLock()
        self._reads = self._bytes = self._opened = 0

    @property
    def max_open(self) -> int:
        """The number of files that may stay open."""
        return self._max_open

    def __repr__(self) -> str:
        return f"<LocalFiles {len(self._handles)}/{self._max_open} open, {self._reads} reads>"

    def read_into(self, fd: int, path: str, offset: int, into: memoryview) -> None:
        """Fill `into` from an open file (see `using`): the hot path of loading."""
        done = 0
        while done < len(into):
            try:
                count = os.preadv(fd, [into[done:] if done else into], offset + done)
            except OSError as error:
                raise _unreadable(path, error).within(offset=offset) from None
            if not count:
                raise _ends_early(path, offset, len(into))
            done += count
        self._reads += 1
        self._bytes += done

    def read(self, where: ByteRange) -> bytes:
        """All bytes of a range."""
        with self.using(where.path, where.stamp) as fd:
            try:
                data = os.pread(fd, where.length, where.offset)
            except OSError as error:
                raise _unreadable(where.path, error).within(offset=where.offset) from None
        self._reads += 1  # may lose a tick between threads: only shown to people
        self._bytes += len(data)
        if len(data) < where.length:
            if data:  # a signal or a network file system may cut a read short: read the rest
                rest = replace(
                    where, offset=where.offset + len(data), length=where.length - len(data)
                )
                return data + self.read(rest)
            raise _ends_early(where.path, where.offset, where.length)
        return data

    def statistics(self) -> LocalFilesStatistics:
        """What was read and opened so far."""
        return LocalFilesStatistics(self._reads, self._bytes, len(self._handles), self._opened)

    def close(self) -> None:
        """Close all files that no thread is reading now; later reads open them again."""
        with self._lock:
            for key in [k for k, handle in self._handles.items() if not handle.users]:
                os.close(self._handles.pop(key).fd)

    @contextmanager
    def using(self, path: str, stamp: Stamp | None) -> Iterator[int]:
        """A descriptor that stays open for the duration of the `with` block."""
        fd = self.acquire(path, stamp)
        try:
            yield fd
        finally:
            self.release(path, stamp)

    def acquire(self, path: str, stamp: Stamp | None) -> int:
        """A descriptor that stays open until every `acquire` is matched by a `release`."""
        key = (path, stamp)
        with self._lock:
            handle = self._handles.get(key)
            if handle is None:
                handle = self._handles[key] = _Handle(_open(path, stamp))
                self._opened += 1
                self._evict()
            else:
                self._handles.move_to_end(key)
            handle.users += 1
            return handle.fd

    def release(self, path: str, stamp: Stamp | None) -> None:
        """Undo one `acquire`."""
        with self._lock:
            self._handles[path, stamp].users -= 1

    def _evict(self) -> None:
        """Close the least recently used files beyond the limit, except those in use."""
        surplus = len(self._handles) - self._max_open
        if surplus <= 0:
            return
        newest = next(reversed(self._handles))
        idle = [k for k, h in self._handles.items() if not h.users and k != newest]
        for key in idle[:surplus]:
            os.close(self._handles.pop(key).fd)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then
        for handle in getattr(self, "_handles", {}).values():
            _close(handle.fd)


def _open(path: str, stamp: Stamp | None) -> int:
    """Open the file, which must still be the one that was indexed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except OSError as error:
        raise _unreadable(path, error) from None
    found = os.fstat(fd)
    if stamp is not None and stamp != (found.st_size, found.st_mtime_ns):
        os.close(fd)
        raise DatasetError(
            "the file changed since it was indexed",
            file=path,
            remedy="Open the catalog again (it re-indexes what changed), or restore the file",
        )
    return fd


def _ends_early(path: str, offset: int, length: int) -> DatasetError:
    return DatasetError(
        f"the file ends before byte {offset + length:,}",
        file=path,
        offset=offset,
        remedy="It was truncated or replaced since it was indexed: restore it, or run "
        "`headrace index` again",
    )


def _unreadable(path: str, error: OSError) -> DatasetError:
    return DatasetError(
        f"the file cannot be read: {error.strerror}",
        file=path,
        remedy="Check that it exists and is readable, or run `headrace index` again",
    )


class FileLeases:
    """Descriptors that one thread keeps open, so that it does not lock the shared set at each read.

    With many threads the lock would be taken ten thousand times a second.
    """

    def __init__(self, files: LocalFiles, limit: int) -> None:
        self._files = files
        self._limit = max(1, limit)
        self._fds: OrderedDict[_Key, int] = OrderedDict()

    def __getitem__(self, key: _Key) -> int:
        fd = self._fds.get(key)
        if fd is None:
            fd = self._fds[key] = self._files.acquire(*key)
            if len(self._fds) > self._limit:
                oldest, _ = self._fds.popitem(last=False)
                self._files.release(*oldest)
        return fd

    def close(self) -> None:
        """Release all descriptors."""
        while self._fds:
            self._files.release(*self._fds.popitem()[0])

    def __del__(self) -> None:
        self.close()


@cache
def shared_files() -> LocalFiles:
    """The open files that all catalogs of this process share, so that one limit holds for all."""
    return LocalFiles()
