"""How much memory is there: of the machine, and of the control group the process lives in."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_memory"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be taken before the machine, or the control group, runs out."""
    return min(_machine(), *_groups())


def _machine() -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _groups() -> list[int]:
    """What each control group above us still allows; page cache counts as free."""
    found = [1 << 62]
    try:
        lines = _CGROUP.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # the unified hierarchy
            folder = _ROOT / path.lstrip("/")
            while folder.is_relative_to(_ROOT):
                room = _room(
                    folder / "memory.max", folder / "memory.current", folder, "inactive_file"
                )
                found.append(room)
                folder = folder.parent
        elif "memory" in controllers.split(","):
            folder = _ROOT / "memory" / path.lstrip("/")
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            found.append(_room(folder / limit, folder / usage, folder, "total_inactive_file"))
    return found


def _room(limit: Path, usage: Path, folder: Path, cache: str) -> int:
    try:
        allowed = limit.read_text().strip()
        if allowed == "max":
            return 1 << 62
        used = int(usage.read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name == cache:
                used -= int(value)
        return max(0, int(allowed) - used)
    except (OSError, ValueError):
        return 1 << 62
