"""Control groups (v1 and v2) that a process lives in: memory used, memory left, kernel kills."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["UNLIMITED", "KernelKills", "MemoryGroup", "memory_groups"]

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One group that accounts for memory."""

    folder: Path
    unified: bool  #: cgroup v2

    def limit(self) -> int:
        """Bytes it may hold."""
        name = "memory.max" if self.unified else "memory.limit_in_bytes"
        return min(_number(self.folder / name, UNLIMITED), UNLIMITED)

    def used(self) -> int:
        """Bytes charged to it but for pages of files, which are dropped when memory is wanted."""
        name = "memory.current" if self.unified else "memory.usage_in_bytes"
        prefix = "" if self.unified else "total_"
        stat = self.folder / "memory.stat"
        files = sum(_line(stat, f"{prefix}{kind}_file") for kind in ("inactive", "active"))
        return max(0, _number(self.folder / name, 0) - files)

    def left(self) -> int:
        """Bytes it still allows."""
        limit = self.limit()
        return UNLIMITED if limit == UNLIMITED else max(0, limit - self.used())

    def kills(self) -> int:
        """Processes in it that the kernel has killed for want of memory so far."""
        name = "memory.events" if self.unified else "memory.oom_control"
        return _line(self.folder / name, "oom_kill")


def memory_groups(pid: int | str = "self", *, above: bool = False) -> list[MemoryGroup]:
    """The innermost group of a process in each hierarchy that accounts for memory.

    With `above` also those that it lies in. In a container the path that the kernel names may not
    be there, and the root is our group: so folders are tried all the way up.
    """
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:  # it has ended, or there are no groups here
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots, unified, file = [_ROOT, _ROOT / "unified"], True, "memory.current"
        elif "memory" in controllers.split(","):
            roots, unified, file = [_ROOT / "memory"], False, "memory.usage_in_bytes"
        else:
            continue
        for root in roots:
            inner = root / path.lstrip("/")
            folders = [inner, *(up for up in inner.parents if up.is_relative_to(root))]
            known = [MemoryGroup(folder, unified) for folder in folders if (folder / file).exists()]
            found += known if above else known[:1]
    return found


class KernelKills:
    """Counts what the kernel kills for want of memory from now on, in the groups of a run.

    A run may enter a group of its own after its start (a wrapper, a container), so groups are
    noted as they are seen; one first seen later had killed nobody of the run before.
    """

    def __init__(self) -> None:
        self._machine = self._everywhere()
        self._groups: dict[MemoryGroup, int] = {}
        self.note("self")

    def note(self, pid: int | str) -> list[MemoryGroup]:
        """The groups of a process, now also counted."""
        groups = memory_groups(pid)
        for group in groups:
            if group not in self._groups:
                self._groups[group] = group.kills()
        return groups

    def in_groups(self) -> int:
        """Kills in the groups that were seen."""
        return sum(max(0, group.kills() - first) for group, first in self._groups.items())

    def on_machine(self) -> int:
        """Kills anywhere on the machine: evidence only for a process that died of SIGKILL."""
        return max(0, self._everywhere() - self._machine)

    @staticmethod
    def _everywhere() -> int:
        return _line(_PROC / "vmstat", "oom_kill")


def _number(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number
        return default


def _line(path: Path, name: str) -> int:
    """The number after a name in a file of such lines; 0 where there is none."""
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        pass
    return 0
