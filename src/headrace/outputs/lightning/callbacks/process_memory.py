"""Anonymous memory of a process with its children, cheaply enough to look every second.

By the kernel's running counts, not by walking pages, which takes tens of milliseconds in a process
with a model in it. Shared memory counts once, in the first process: the loader's slots are mapped
there, and its workers map the same ones.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["tree_anonymous"]

_PROC = Path("/proc")


def tree_anonymous(pid: int) -> int:
    """Bytes that a process and all below it hold and cannot drop."""
    total, waiting = _held(pid, ("RssAnon", "RssShmem")), _children(pid)
    while waiting:
        child = waiting.pop()
        total += _held(child, ("RssAnon",))
        waiting += _children(child)
    return total


def _held(pid: int, names: tuple[str, ...]) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:  # it has ended meanwhile
        return 0
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values[name].split()[0]) << 10 for name in names if name in values)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found
