"""The process that fills windows: `python -m headrace.loader.rows.worker SOCKET ABOUT MEMORY`.

Started as `loader.process_worker` is, and speaks as it does.
"""

from __future__ import annotations

import mmap
import pickle
import traceback

import numpy as np

from headrace.engine.machine import keep_freed_memory
from headrace.engine.shared import map_region
from headrace.engine.slots import Arrays, slot_bytes, slot_views
from headrace.engine.statistics import Counters
from headrace.errors import WorkerError
from headrace.jobs import from_portable
from headrace.loader.process_worker import Parent, run_worker
from headrace.loader.rows.work import RowWork

__all__: list[str] = []


def serve(parent: Parent, about: int, memory: int) -> None:
    """Fill windows until the parent is gone."""
    with mmap.mmap(about, 0, access=mmap.ACCESS_READ) as described:
        work, batch_size = from_portable(pickle.loads(described))
    assert isinstance(work, RowWork)
    keep_freed_memory()  # a transform makes the same arrays again and again
    specs = work.specs(batch_size)
    size = slot_bytes(specs)
    slots: dict[int, Arrays] = {}  # by place; places are used again, so there are few
    parent.send("ready")
    while True:
        place, _, width, lines = parent.receive()
        counters = Counters()
        if place not in slots:
            slots[place] = slot_views(specs, map_region(memory, place, size))
        error: Exception | None = None
        try:
            work.fill(np.frombuffer(lines, np.int64).reshape(-1, width), slots[place], counters)
        except Exception as caught:  # whatever a transform raises: the consumer gets it
            error = caught
        parent.send("done", 0, _sendable(error), {}, {}, counters.values())


def _sendable(error: Exception | None) -> Exception | None:
    """An error as it is, or its words if it does not survive the way."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        words = "".join(traceback.format_exception(error))
        return WorkerError(f"a worker process failed: {words}")
    return error


if __name__ == "__main__":
    run_worker(serve)
