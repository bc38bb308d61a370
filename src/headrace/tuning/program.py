"""The figures of any program: what it leaves in its run folder, by the names of `headrace bench`.

A training script needs nothing of headrace for it: it finds the folder in `HEADRACE_RUN`, and
writes `batch_times.jsonl` (one record a step: `dt_s`, and `fetch_dt_s`, `samples`, `is_warmup`
where it knows them), or `result.json` with figures of its own, or both, or neither.
"""

from __future__ import annotations

from pathlib import Path

from headrace.measure.columns import finite
from headrace.measure.runs import RunReader

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
    reader = RunReader(folder)
    counted = reader.figures()
    figures: dict[str, float | None] = {}
    if counted["batches"]:
        figures = {key: counted[key] for key in ("p50_s", "p90_s", "p99_s", "samples_per_s")}
        figures["steps_per_s"] = counted["batches_per_s"]
        stall, mean = counted["stall_s_per_step"], counted["mean_s"]
        figures["loader_share"] = stall / mean if stall is not None and mean else None
    for key, name in {**{key: key for key in RESULT_FIGURES}, **_OTHERS}.items():
        if (value := finite(reader.result.get(key))) is not None:
            figures[name] = value
    return figures
