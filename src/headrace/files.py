"""Atomic writing (a kill or a full disk leaves the old file or the new one), and locks on files.

>>> import tempfile
>>> file = Path(tempfile.mkdtemp()) / "result.json"
>>> atomic_write(file, "{}")
>>> file.read_text()
'{}'
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["Locked", "atomic_write", "locked", "replacing", "sync_folder"]

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Locked(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder} holds the lock")
        self.holder = holder  #: its process id, or "unknown"


def atomic_write(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace a file's content as a whole."""
    with replacing(path, durable=durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when the block ends without an error.

    `durable` waits until the bytes are on the disk, so that a power cut leaves no empty file.
    """
    aside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk does not say which file
            error.filename = error.filename or str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(file: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock that ends with its holder, however that ends.

    With `waiting`, which is called once when another process has the lock, wait for it; without,
    raise `Locked`. On a file system without locks everybody has it: what is written must survive
    two writers (see `replacing`).
    """
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        told = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is None:
                    holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                    raise Locked(holder or "unknown") from None
                if not told:
                    waiting()
                    told = True
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                raise
        with contextlib.suppress(OSError):  # for `Locked.holder` only
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
