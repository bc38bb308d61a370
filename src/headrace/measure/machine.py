"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.engine.machine import allowed_cpus

__all__ = ["machine_facts"]

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


def machine_facts(data: Path | None = None) -> dict[str, Any]:
    """CPU, cores, memory, the disk that holds the data, and versions, as JSON."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cores_allowed": allowed_cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cgroup": _group_limits(),
        "disk": _disk(data) if data else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": dict(_versions()),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _group_limits() -> dict[str, str]:
    """Limits of the innermost control group that has any."""
    found = {}
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    inner = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / inner.lstrip("/")
    for name in ("cpu.max", "memory.max", "memory.high"):
        try:
            found[name] = (folder / name).read_text().strip()
        except OSError:
            continue
    return found


def _disk(data: Path) -> dict[str, Any] | None:
    """File system and size of what holds the data."""
    try:
        where = data.resolve()
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        space = os.statvfs(where)
    except OSError:
        return None
    inside = [m for m in mounts if where.is_relative_to(m[1].replace("\\040", " "))]
    mount = max(inside, key=lambda m: len(m[1]), default=["?", "?", "?"])
    return {
        "file_system": mount[2],
        "bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
    }
