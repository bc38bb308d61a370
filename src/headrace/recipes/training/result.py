"""result.json of a training run: the figures of a benchmark, by the same names, and its own."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.measure.bench.run import draw
from headrace.measure.runs import Outcome, RunReader, summarise, write_json

__all__ = ["Ended", "write_result"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    status: str  #: complete, interrupted or failed
    folder: Path
    result: dict[str, Any]  #: what result.json says
    cause: str | None = None  #: why it is not complete


def write_result(
    folder: Path,
    name: str,
    status: str,
    cause: str | None,
    *,
    config: Mapping[str, Any],
    asked: Mapping[str, float],
    world: int,
    accumulate: int,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Sum up what was recorded, and draw the report; `own` is the recipe's to say."""
    reader = RunReader(folder)
    held = reader.memory.anon_mb
    request = {
        "name": name,
        "backend": "headrace",
        "job": dict(config),
        "settings": {"compute_ms": None},
        "machine": reader.machine,
    }
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    outcome = Outcome(status, cause, None, rss, int(np.nanmax(held, initial=0.0) * 1e6))
    result = summarise(folder, request, outcome, None)
    result["config"] = dict(config)
    for key in ("samples_per_s", "samples"):  # batch_times.jsonl has the first rank's
        result[key] = None if result[key] is None else result[key] * world
    rate = result["batches_per_s"]
    result["steps_per_s"] = rate / accumulate if rate else None
    stall, mean = result["stall_s_per_step"], result["mean_s"]
    result["loader_share"] = stall / mean if stall is not None and mean else None
    served = result["mixture"]
    result["mixture"] = {
        each: {"asked": asked.get(each), "served": served.get(each, {}).get("served")}
        for each in {**asked, **served}
    }
    result |= {"program": "train", "world": world, **own}
    write_json(folder / "result.json", result)
    draw(folder)
    return result
