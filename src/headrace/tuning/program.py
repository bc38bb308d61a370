"""The figures of any program: what it leaves in its run folder, by the names of `headrace bench`.

A training script needs nothing of headrace for it: it finds the folder in `HEADRACE_RUN`, and
writes `batch_times.jsonl` (one record a step: `dt_s`, and `fetch_dt_s`, `samples`, `is_warmup`
where it knows them), or `result.json` with figures of its own, or both, or neither.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.measure.bench.result import read_records
from headrace.measure.report.records import finite, read_object

__all__ = ["RESULT_FIGURES", "figures_left_in"]

#: Figures that are called the same in `result.json` and in a row.
RESULT_FIGURES = (
    "samples_per_s",
    "p50_s",
    "p90_s",
    "p99_s",
    "first_batch_s",
    "peak_anon_mb",
    "peak_rss_mb",
    "validation_start_s",
)
_OTHERS = {"steps_per_s": "steps_per_s", "batches_per_s": "steps_per_s"}
_OTHERS |= {"loader_share": "loader_share"}


def figures_left_in(folder: Path) -> dict[str, float | None]:
    """Figures from the records of the steps; what `result.json` states counts more."""
    figures = _of_steps(folder / "batch_times.jsonl")
    stated, _ = read_object(folder / "result.json")
    for key, name in {**{key: key for key in RESULT_FIGURES}, **_OTHERS}.items():
        if (value := finite(stated.get(key))) is not None:
            figures[name] = value
    return figures


def _of_steps(path: Path) -> dict[str, float | None]:
    records = [
        each
        for each in read_records(path)
        if isinstance(each, dict) and finite(each.get("dt_s")) and not each.get("is_warmup")
    ]
    if not records:
        return {}
    steps = np.array([each["dt_s"] for each in records], np.float64)
    total = float(steps.sum())
    samples = sum(finite(each.get("samples")) or 0.0 for each in records)
    waits = [finite(each.get("fetch_dt_s")) for each in records]
    known = [wait for wait in waits if wait is not None]
    figures: dict[str, float | None] = {
        f"p{p}_s": float(np.percentile(steps, p)) for p in (50, 90, 99)
    }
    figures["steps_per_s"] = len(records) / total
    figures["samples_per_s"] = samples / total if samples else None
    figures["loader_share"] = sum(known) / total if len(known) == len(records) else None
    return figures
