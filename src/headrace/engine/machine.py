"""What this process may use of the machine: CPUs and memory, also under control groups (v1, v2).

Ranks of one training run on one node share it. What a rank may use of the CPUs:

- its affinity, and of the CPUs that all ranks of the node have together its part. Together they
  have what Slurm says (SLURM_CPUS_ON_NODE), else those of the process that started this one, and no
  more than a control group's quota. Where the launcher has bound each rank to CPUs of its own, the
  affinity is that part already, and nothing is divided twice;
- how many ranks there are is the largest number that a launcher's environment names.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_UNLIMITED = 1 << 62


def allowed_cpus(*, whole_node: bool = False) -> int:
    """CPUs that this process may really use: its affinity, quotas, and other ranks considered.

    With `whole_node` other ranks are not: for work that one of them does while the others wait.
    """
    bound, quota = len(os.sched_getaffinity(0)), _cpu_quota()
    ranks = 1 if whole_node else ranks_on_node()
    if ranks == 1:
        return min(bound, quota)
    return max(1, min(bound, min(_cpus_of_ranks(), quota) // ranks))


def rank_and_world_size_of_launcher() -> tuple[int, int]:
    """This process among those that were started with it, by torchrun, srun or Lightning.

    In the script of a Slurm job SLURM_PROCID and SLURM_NTASKS are there as well: only a step (srun)
    has several processes. Those that Lightning starts itself have no RANK.
    """
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("LOCAL_RANK", "WORLD_SIZE"),
    ):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def ranks_on_node() -> int:
    """Processes of this kind that share the node's CPUs and memory, as their launchers say."""
    found = [1]
    for key in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        found += map(int, re.findall(r"^\d+$", os.environ.get(key, "")))
    per_node = tasks_per_node(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if per_node:
        node = os.environ.get("SLURM_NODEID", "")
        known = node.isdigit() and int(node) < len(per_node)
        found.append(per_node[int(node)] if known else max(per_node))
    elif "LOCAL_WORLD_SIZE" not in os.environ and "LOCAL_RANK" in os.environ:
        # Lightning's own processes. It does not say how many nodes there are: mostly one.
        found.append(rank_and_world_size_of_launcher()[1])
    return max(found)


def tasks_per_node(text: str) -> list[int]:
    """Slurm's list of tasks on each node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text)
    return [int(tasks) for tasks, nodes in found for _ in range(int(nodes or 1))]


def _cpus_of_ranks() -> int:
    """CPUs that the ranks of this node have together."""
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_STEP_ID" in os.environ and given.isdigit():
        return int(given)
    try:
        return len(os.sched_getaffinity(os.getppid()))
    except OSError:  # it has ended, or is outside of our container
        return os.cpu_count() or 1


def _cpu_quota() -> int:
    """CPUs' worth of time that control groups allow."""
    allowed = _UNLIMITED
    for folder, unified in _groups("self", "cpu"):
        try:
            if unified:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                allowed = min(allowed, max(1, round(int(quota) / int(period))))
        except (OSError, ValueError):
            continue
    return allowed


def available_memory() -> int:
    """Bytes that can be taken before the machine, or a control group, runs out."""
    groups = memory_groups(above=True)
    return min([int(_memory().available), *(group.left() for group in groups)])


def allowed_memory() -> int:
    """Bytes that the machine has, or a control group allows."""
    groups = memory_groups(above=True)
    return min([int(_memory().total), *(group.limit() for group in groups)])


def _memory() -> Any:
    import psutil  # not above: worker processes do without it, which saves each 1.3 MB

    return psutil.virtual_memory()


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One control group that accounts for memory."""

    folder: Path
    unified: bool  #: cgroup v2

    def limit(self) -> int:
        """Bytes it may hold."""
        name = "memory.max" if self.unified else "memory.limit_in_bytes"
        return min(_number(self.folder / name, _UNLIMITED), _UNLIMITED)

    def used(self) -> int:
        """Bytes charged to it except pages of files, which are dropped when memory is needed."""
        name = "memory.current" if self.unified else "memory.usage_in_bytes"
        prefix = "" if self.unified else "total_"
        stat = self.folder / "memory.stat"
        files = sum(_entry(stat, f"{prefix}{kind}_file") for kind in ("inactive", "active"))
        return max(0, _number(self.folder / name, 0) - files)

    def left(self) -> int:
        """Bytes it still allows."""
        limit = self.limit()
        return _UNLIMITED if limit == _UNLIMITED else max(0, limit - self.used())

    def kills(self) -> int:
        """Processes in it that the kernel has killed so far because memory ran out."""
        name = "memory.events" if self.unified else "memory.oom_control"
        return _entry(self.folder / name, "oom_kill")


def memory_groups(pid: int | str = "self", *, above: bool = False) -> list[MemoryGroup]:
    """The innermost group of a process in each hierarchy that accounts for memory.

    With `above` also the groups that contain it.
    """
    files = {True: "memory.current", False: "memory.usage_in_bytes"}
    found: list[MemoryGroup] = []
    hierarchies: set[bool] = set()
    for folder, unified in _groups(pid, "memory"):
        if not (folder / files[unified]).exists() or (unified in hierarchies and not above):
            continue
        hierarchies.add(unified)
        found.append(MemoryGroup(folder, unified))
    return found


class KernelKills:
    """Counts the processes of a run that the kernel kills from now on because memory ran out.

    A run may enter a control group of its own after its start (a wrapper, a container), so groups
    are noted as they are seen; one that is first seen later had killed no process of the run.
    """

    def __init__(self) -> None:
        self._machine = self._everywhere()
        self._groups: dict[MemoryGroup, int] = {}
        self.note("self")

    def note(self, pid: int | str) -> list[MemoryGroup]:
        """The groups of a process, which are counted from now on."""
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
        return _entry(_PROC / "vmstat", "oom_kill")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_KEPT = 32 << 20  # bytes at most that stay with the process
_LARGE = 8 << 20  # arrays above this are given back as before


def keep_freed_memory() -> bool:
    """Keep some MB of freed memory from now on; whether this system's malloc can do that.

    glibc gives large arrays back to the system as soon as they are freed, and the system hands out
    zeroed pages for the next ones. In a process that makes the same temporary arrays for every task
    that is a third of its CPU time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))


_SET_PARENT_DEATH_SIGNAL = 1  # as prctl.h numbers it


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even if stopped."""
    with suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _groups(pid: int | str, controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of the groups of a process, innermost first, and whether each is of version 2.

    In a container the path that the kernel names may not exist, and the root is our group: so
    folders are tried all the way up.
    """
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:  # it has ended, or there are no groups here
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots, unified = [_ROOT, _ROOT / "unified"], True
        elif controller in controllers.split(","):
            roots, unified = [_ROOT / controller, _ROOT / controllers], False
        else:
            continue
        for root in dict.fromkeys(roots):
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(root):
                    yield folder, unified


def _number(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is not a number
        return default


def _entry(path: Path, name: str) -> int:
    """The number after a name in a file of such lines; 0 where there is none."""
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        pass
    return 0


def cpu_time(process: int, thread: int) -> int:
    """CPU time that a thread of a process has used, in the kernel's ticks; -1 if it has ended."""
    try:
        stat = (_PROC / str(process) / "task" / str(thread) / "stat").read_text()
        user, system = stat.rsplit(")", 1)[1].split()[11:13]
        return int(user) + int(system)
    except (OSError, ValueError, IndexError):
        return -1


def descendants(pid: int) -> list[int]:
    """A process and all below it that are there now.

    By the kernel's lists of children. `psutil.Process.children` looks at every process of the
    machine instead: 30 us for each (measured), twice a second beside what is being measured.
    """
    found, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        found.append(process)
        with suppress(OSError):  # it has ended meanwhile
            for task in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError):
                    waiting += map(int, (task / "children").read_text().split())
    return found
