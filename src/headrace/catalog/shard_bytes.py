"""A shard's bytes as something to index into, without holding them all."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import DatasetError

__all__ = ["ShardBytes", "open_shard"]

_RELEASE = 32 << 20  # mapped pages are given back every so many bytes, so memory stays flat


class ShardBytes:
    """Bytes of a shard that is passed over once, from front to back."""

    def __init__(self, buffer: bytes | mmap.mmap, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self._released = 0

    def read(self, offset: int, length: int) -> bytes:
        """A copy of a few bytes."""
        return self.buffer[offset : offset + length]

    def passed(self, position: int) -> None:
        """Everything before `position` is done with."""
        if isinstance(self.buffer, mmap.mmap) and position - self._released >= _RELEASE:
            first = self._released - self._released % mmap.PAGESIZE
            last = position - position % mmap.PAGESIZE
            self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
            self._released = position


@contextmanager
def open_shard(path: Path, *, mapped: bool) -> Iterator[ShardBytes]:
    """Open a shard for one pass.

    Mapped, pages that the pass skips are never touched; but a file that shrinks meanwhile kills
    the process. So worker processes map, and whoever works in the caller's process does not.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise OSError(errno.EINVAL, "it is not a regular file")
        file = path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DatasetError(
            f"the shard cannot be read: {error.strerror}",
            file=str(path),
            remedy="Check its permissions and the disk",
        ) from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if not mapped or size == 0:
            try:
                data = file.read()
            except OSError as error:
                raise DatasetError(
                    f"the shard cannot be read: {error.strerror}", file=str(path)
                ) from None
            yield ShardBytes(data, len(data))
        else:
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as pages:
                yield ShardBytes(pages, size)
