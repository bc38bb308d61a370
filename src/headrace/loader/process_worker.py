"""The process that fills samples: `python -m headrace.loader.process_worker SOCKET ABOUT MEMORY`.

Started by `process.SampleProcess` with three descriptors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.shared import map_region
from headrace.engine.slots import Arrays, slot_bytes, slot_views
from headrace.engine.statistics import Counters
from headrace.errors import HeadraceError
from headrace.loader.messages import receive, send
from headrace.loader.work import SampleReader
from headrace.reading.local import shared_files

__all__ = ["Parent", "run_worker"]


class Parent:
    """The thread that we work for; also the budget that it keeps."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def send(self, *message: Any) -> None:
        """Tell it something."""
        send(self._socket, message)

    def receive(self) -> Any:
        """Its next message."""
        return receive(self._socket)

    def charge(self, size: int, what: str) -> None:
        """Ask for memory."""
        self.send("charge", size, what)
        if (error := self.receive()) is not None:
            raise error

    def release(self, size: int) -> None:
        """Nothing is given back before the process ends, and then everything is."""


class _Texts:
    """Texts of a task's rows."""

    def __init__(self) -> None:
        self.language: dict[int, str] = {}
        self.robot: dict[int, str] = {}


def serve(parent: Parent, about: int, memory: int) -> None:
    """Fill samples until the parent is gone."""
    with mmap.mmap(about, 0, access=mmap.ACCESS_READ) as described:  # processes share its position
        sources, options, specs = pickle.loads(described)
    use_one_thread_per_call()
    size = slot_bytes(specs)
    slots: dict[int, Arrays] = {}  # by place; places are used again, so there are few
    reader: SampleReader | None = None
    files = shared_files()
    parent.send("ready")
    while True:
        place, keep, width, lines = parent.receive()
        texts, counters = _Texts(), Counters()
        error: HeadraceError | None
        try:
            if reader is None:
                reader = SampleReader(
                    sources,
                    files,
                    parent,
                    counters,
                    options=options,
                    open_files=files.max_open // 2,
                )
            if place not in slots:
                slots[place] = slot_views(specs, map_region(memory, place, size))
            reader.counters = counters
            table = np.frombuffer(lines, np.int64).reshape(-1, width)
            done, error = reader.fill(table, slots[place], texts, keep=keep)
        except HeadraceError as caught:
            done, error = 0, caught
        parent.send("done", done, error, texts.language, texts.robot, counters.values())


def _be_killed_first() -> None:
    """Ask the kernel to take us when memory runs out: our thread goes on, and nothing is lost."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def run_worker(serve: Callable[[Parent, int, int], None]) -> None:
    """Serve, and leave quietly with the parent."""
    connection, about, memory = map(int, sys.argv[1:])
    _be_killed_first()
    parent = Parent(connection)
    try:
        serve(parent, about, memory)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone
    except BaseException:
        with contextlib.suppress(OSError):
            parent.send("failed", traceback.format_exc())
        os._exit(1)


if __name__ == "__main__":
    run_worker(serve)
