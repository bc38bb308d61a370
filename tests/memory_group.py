"""A control group with a memory limit: the nearest thing to a small container.

Needs the right to make one (root, or a delegated group), on version 1 or 2 of control groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.engine.machine import MemoryGroup
from headrace.errors import UsageError

__all__ = ["LimitedGroup", "memory_group"]

_ROOT = Path("/sys/fs/cgroup")


class LimitedGroup:
    """A group that exists; made by `memory_group`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<LimitedGroup {self.folder}>"

    @property
    def procs(self) -> Path:
        """Whoever writes its process number there belongs to the group, with all it starts."""
        return self.folder / "cgroup.procs"

    @property
    def kills(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        return MemoryGroup(self.folder, (self.folder / "memory.events").exists()).kills()

    @property
    def peak(self) -> int:
        """Most bytes that it has held, page cache included; 0 if the kernel does not tell."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError):
                return int((self.folder / name).read_text())
        return 0

    def command(self, *command: str) -> list[str]:
        """A command that runs another one inside the group."""
        return ["sh", "-c", f'echo $$ > "{self.procs}"; exec "$@"', "sh", *command]


@contextmanager
def memory_group(limit: int) -> Iterator[LimitedGroup]:
    """A group whose processes may hold `limit` bytes, without swap; ends with what is in it."""
    folder, names = _place()
    try:
        folder.mkdir()
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a kernel that does not account for swap
                (folder / name).write_text("0" if "swap" in name else str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise UsageError(
            f"no control group can be made in {folder.parent}: {error.strerror}",
            remedy="It takes root, or a group that was delegated to you",
        ) from None
    try:
        yield LimitedGroup(folder)
    finally:
        _end(folder)


def _place() -> tuple[Path, tuple[str, ...]]:
    """A new group inside our own, and the files with its limits."""
    name = f"headrace-{os.getpid()}-{time.monotonic_ns()}"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root = _ROOT / "memory"
            limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        elif controllers == "" and (_ROOT / "cgroup.controllers").exists():
            root, limits = _ROOT, ("memory.max", "memory.swap.max")
        else:
            continue
        inside = root / path.lstrip("/")
        return (inside if inside.is_dir() else root) / name, limits
    raise UsageError("there are no control groups for memory here", remedy="Run it on Linux")


def _end(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            folder.rmdir()
            return
        except OSError:  # those killed have not ended yet
            time.sleep(0.02)
