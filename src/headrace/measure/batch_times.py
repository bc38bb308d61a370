"""`batch_times.jsonl`: one record a batch, as reports and studies read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace.loader import Batch

__all__ = ["BatchTimes", "source_counts"]


class BatchTimes:
    """Writes the records of a loop; what is written is there even if the loop is killed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._last_seen: dict[str, int] = {}
        self._begun: float | None = None
        self.batches = 0

    def add(
        self,
        *,
        now: float,
        wait_s: float,
        step_s: float,
        samples: int,
        counts: dict[str, int],
        warmup: bool,
        look_s: float = 0.0,
    ) -> None:
        """A batch: `now` it is recorded, so long it was waited for, and so long took the rest.

        `look_s` of that was spent on touching it, where that is measured.
        """
        if self._begun is None:
            self._begun = now - wait_s - step_s
        dominant = max(counts, key=lambda name: counts[name]) if counts else None
        gap = self.batches - self._last_seen.get(dominant, self.batches) if dominant else None
        if dominant:
            self._last_seen[dominant] = self.batches
        record: dict[str, Any] = {
            "idx": self.batches,
            "t_s": round(now - self._begun, 6),
            "dt_s": round(wait_s + step_s, 7),
            "fetch_dt_s": round(wait_s, 7),
            "materialize_dt_s": round(look_s, 7),
            "is_warmup": warmup,
            "samples": samples,
            "dominant_dataset": dominant,
            "dataset_counts": counts,
            "dominant_gap_batches": gap,
        }
        self._file.write(json.dumps(record) + "\n")
        self.batches += 1

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


def source_counts(batch: Batch) -> dict[str, int]:
    """Samples of each source in a batch; empty where the batch does not say."""
    if batch.dataset is None:
        return {}
    counts = np.bincount(batch.dataset, minlength=len(batch.names)).tolist()
    return {name: n for name, n in zip(batch.names, counts, strict=False) if n}
