"""Runs whose supervisor was killed: found again by a note in their folder, and ended.

A run is a process group of its own, so it outlives a supervisor that the kernel has killed, and
would hold memory and CPUs while the next one is measured.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["end_leftovers", "note_process"]

_NOTE = "process"


def note_process(folder: Path, pid: int | None) -> None:
    """Write down the process of a run; None: it has ended."""
    note = folder / _NOTE
    if pid is None:
        note.unlink(missing_ok=True)
    elif (started := _started(pid)) is not None:
        note.write_text(f"{pid} {started}\n")


def end_leftovers(runs: Path) -> list[int]:
    """End the process groups of runs in a folder that nobody watches any more; their numbers."""
    ended = []
    for note in runs.glob(f"*/{_NOTE}"):
        with contextlib.suppress(OSError, ValueError):
            pid, started = note.read_text().split()
            # A number that another process has got since is left alone.
            if _started(int(pid)) == started:
                os.killpg(int(pid), signal.SIGKILL)
                ended.append(int(pid))
        note.unlink(missing_ok=True)
    return ended


def _started(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None
