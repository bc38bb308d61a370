"""Memory and CPU time of a process with all its descendants."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

__all__ = [
    "MemoryWatch",
    "TreeMemory",
    "descendants",
    "tree_cpu_seconds",
    "tree_memory",
    "tree_read_bytes",
]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """Memory of a process tree; a page that several of its processes share counts once."""

    rss: int  #: bytes resident
    anonymous: int  #: of these, not backed by files: what cannot be dropped under pressure


def descendants(pid: int) -> list[int]:
    """A process and all below it that are there now."""
    found, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        found.append(process)
        for task in _listed(_PROC / str(process) / "task"):
            try:
                waiting += map(int, (task / "children").read_text().split())
            except OSError:
                continue
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended meanwhile
        return []


def tree_memory(pid: int) -> TreeMemory:
    """Memory of a process and its descendants, each page by its share (PSS)."""
    rss = anonymous = 0
    for process in descendants(pid):
        try:
            lines = (_PROC / str(process) / "smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        sizes = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        rss += sizes.get("Pss", 0)
        anonymous += sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)
    return TreeMemory(rss << 10, anonymous << 10)


class MemoryWatch:
    """Memory of a process tree again and again, without taking the CPU that is being measured.

    The exact figures walk every page (16 ms for a loader), so they are taken at most 1% of the
    time; in between, what has changed since is added from the processes' own counts (under 1 ms).
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next = 0.0
        self._exact = TreeMemory(0, 0)
        self._counted = 0

    def now(self) -> TreeMemory:
        """The memory now."""
        started = monotonic()
        counted = self._count()
        if started >= self._next:
            self._exact, self._counted = tree_memory(self._pid), counted
            self._next = monotonic() + 100 * (monotonic() - started)
        grown = counted - self._counted
        return TreeMemory(self._exact.rss + grown, self._exact.anonymous + grown)

    def _count(self) -> int:
        """Anonymous memory, pages that processes share counted for each."""
        total = 0
        for process in descendants(self._pid):
            try:
                status = (_PROC / str(process) / "status").read_text()
            except OSError:
                continue
            _, found, rest = status.partition("RssAnon:")
            total += int(rest.split(maxsplit=1)[0]) << 10 if found else 0
        return total


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants so far, those it has waited for included."""
    ticks = 0
    for process in descendants(pid):
        try:
            fields = (_PROC / str(process) / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of waited-for children
    return ticks / _TICKS


def tree_read_bytes(pid: int) -> int:
    """Bytes that a process and its descendants have asked of `read` calls so far."""
    total = 0
    for process in descendants(pid):
        try:
            lines = (_PROC / str(process) / "io").read_text().splitlines()
        except OSError:
            continue
        total += int(next(line for line in lines if line.startswith("rchar")).split()[1])
    return total
