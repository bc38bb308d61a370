"""One builder at a time: a lock on a catalog's folder that dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["building"]

_POLL_SECONDS = 0.1
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def building(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's build lock; `waiting()` is called once if another process has it.

    The kernel drops the lock when its holder ends, however it ends. On a file system without locks
    two builders work side by side; the renames at the end keep either result whole.
    """
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        said = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    waiting()
                    said = True
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    break
                raise
        yield
    finally:
        os.close(fd)
