"""How much memory is there: of the machine, and of the control groups the process lives in."""

from __future__ import annotations

from pathlib import Path

from headrace.engine.control_group import UNLIMITED, memory_groups

__all__ = ["allowed_memory", "available_memory"]

_MEMINFO = Path("/proc/meminfo")


def available_memory() -> int:
    """Bytes that can be taken before the machine, or a control group, runs out."""
    return min([_machine("MemAvailable"), *(group.left() for group in memory_groups(above=True))])


def allowed_memory() -> int:
    """Bytes that the machine has, or a control group allows."""
    return min([_machine("MemTotal"), *(group.limit() for group in memory_groups(above=True))])


def _machine(name: str) -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return UNLIMITED
