"""How much memory is there: of the machine, and of the control groups the process lives in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["allowed_memory", "available_memory"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 62


def available_memory() -> int:
    """Bytes that can be taken before the machine, or a control group, runs out."""
    return min(_machine("MemAvailable"), *(max(0, limit - used) for limit, used in _groups()))


def allowed_memory() -> int:
    """Bytes that the machine has, or a control group allows."""
    return min(_machine("MemTotal"), *(limit for limit, _ in _groups()))


def _machine(name: str) -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _groups() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that we are in, up to the root.

    In a container the path that the kernel names may not be there, and its root is our group: so
    folders are tried all the way up.
    """
    yield _UNLIMITED, 0
    try:
        lines = _CGROUP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _ROOT, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            root, names = (
                _ROOT / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            )
        else:
            continue
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            found = _group(folder, *names)
            if found:
                yield found
            folder = folder.parent


def _group(folder: Path, limit: str, usage: str, prefix: str) -> tuple[int, int] | None:
    """Limit and use of one group; None without a limit. Page cache counts as free."""
    try:
        allowed = (folder / limit).read_text().strip()
        if allowed == "max":
            return None
        used = int((folder / usage).read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            # Pages of files that were read are dropped when memory is wanted, also active ones.
            if name in (f"{prefix}inactive_file", f"{prefix}active_file"):
                used -= int(value)
        return int(allowed), used
    except (OSError, ValueError):
        return None
