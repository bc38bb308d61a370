"""`memory.jsonl`: memory of this process and its children, as reports and studies read it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import perf_counter

from headrace.engine.memory import available_memory
from headrace.measure.process_tree import MemoryWatch

__all__ = ["MemoryLines"]

_LOOK_SECONDS = 1.0  # at most so often, and at most for half a percent of the time
_PAUSE = 200


class MemoryLines:
    """Writes a line from time to time, whenever somebody calls."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._watch = MemoryWatch(os.getpid())
        self._begun = perf_counter()
        self._next = 0.0
        self.rss = self.anonymous = 0  #: most bytes seen

    def again(self) -> None:
        """Look and write, if it is time."""
        now = perf_counter()
        if now < self._next:
            return
        held = self._watch.now()
        self.rss, self.anonymous = max(self.rss, held.rss), max(self.anonymous, held.anonymous)
        line = {
            "t_s": round(now - self._begun, 3),
            "rss_mb": round(held.rss / 1e6, 1),
            "anon_mb": round(held.anonymous / 1e6, 1),
            "available_mb": round(available_memory() / 1e6, 1),
        }
        self._file.write(json.dumps(line) + "\n")
        self._next = now + max(_LOOK_SECONDS, _PAUSE * (perf_counter() - now))

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()
