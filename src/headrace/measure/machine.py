"""The machine that a figure was measured on, and what process trees take of it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from headrace.engine.machine import allowed_cpus, descendants
from headrace.measure.runs import job_facts

_PACKAGES = (
    "headrace",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "simplejpeg",
    "isal",
    "torch",
    "tensorflow-cpu",
    "tensorflow",
    "tensorflow-datasets",
    "grain",
    "webdataset",
    "mosaicml-streaming",
)
_PROC = Path("/proc")


def machine_facts(data: Path | None = None) -> dict[str, Any]:
    """Date, host and job; CPU, cores, memory, the disk that holds the data, and versions."""
    return {
        **job_facts(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cores_allowed": allowed_cpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup": _group_limits(),
        "disk": _disk(data) if data else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": dict(_versions()),
    }


def _cpu() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)


def _group_limits() -> dict[str, str]:
    """Limits of the innermost control group."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    inner = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / inner.lstrip("/")
    found = {}
    for name in ("cpu.max", "memory.max", "memory.high"):
        with suppress(OSError):
            found[name] = (folder / name).read_text().strip()
    return found


def _disk(data: Path) -> dict[str, Any] | None:
    """File system and size of what holds the data."""
    try:
        where = data.resolve()
        space = psutil.disk_usage(str(where))
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return None
    inside = [mount for mount in mounts if where.is_relative_to(mount.mountpoint)]
    mount = max(inside, key=lambda mount: len(mount.mountpoint), default=None)
    return {
        "file_system": mount.fstype if mount is not None else "?",
        "bytes": space.total,
        "free_bytes": space.free,
    }


# -- process trees ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """Memory of a process tree; a page that several of its processes share counts once."""

    rss: int  #: bytes resident
    anonymous: int  #: of these, not backed by files: what cannot be dropped under pressure


def _tree(pid: int) -> Iterator[psutil.Process]:
    for process in descendants(pid):
        with suppress(psutil.Error):
            yield psutil.Process(process)


def tree_memory(pid: int) -> TreeMemory:
    """Memory of a process and its descendants, each page by its share (PSS)."""
    rss = anonymous = 0
    for process in descendants(pid):
        try:  # psutil has the total only
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
        started = monotonic()
        counted = self._count()
        if started >= self._next:
            self._exact, self._counted = tree_memory(self._pid), counted
            self._next = monotonic() + 100 * (monotonic() - started)
        grown = counted - self._counted
        return TreeMemory(self._exact.rss + grown, self._exact.anonymous + grown)

    def _count(self) -> int:
        """Anonymous memory; pages that processes share count for each."""
        total = 0
        for process in _tree(self._pid):
            with suppress(psutil.Error):
                held = process.memory_info()
                total += held.rss - held.shared
        return total


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants so far, those it has waited for included."""
    total = 0.0
    for process in _tree(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree_read_bytes(pid: int) -> int:
    """Bytes that a process and its descendants have asked of `read` calls so far."""
    total = 0
    for process in _tree(pid):
        with suppress(psutil.Error):
            total += process.io_counters().read_chars
    return total


def finish_queued_work(result: Any = None) -> None:
    """Return when all work that a framework has queued on its device is done.

    No framework is imported for it. `result` is what the last call returned: JAX waits for values,
    not for devices.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    jax = sys.modules.get("jax")
    if jax is not None and result is not None:
        jax.block_until_ready(result)
