"""The evidence in a run folder, of a watched loop or of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.measure.runs import Run, finite, read_object, read_run
from headrace.tuning.doctor.evidence import Evidence
from headrace.tuning.doctor.record import read_evidence

__all__ = ["run_evidence"]


def run_evidence(folder: Path) -> Evidence:
    """What a doctor has left in the folder, else what a benchmark has measured."""
    run = read_run(folder)
    result, _ = read_object(folder / "result.json")
    if "comparison" in result:
        raise DataError(
            f"{str(folder)!r} is a comparison of several runs",
            remedy="Give the folder of one of them, which lies below it",
        )
    return read_evidence(folder) or _of_benchmark(run, result)


def _of_benchmark(run: Run, result: dict[str, Any]) -> Evidence:
    numbers = run.numbers
    rate, wait, mean = (numbers.get(key) for key in ("samples_per_s", "stall_s_per_step", "mean_s"))
    measured = run.batches.measured()
    # A benchmark without a simulated step has nothing that could wait.
    alone = numbers.get("simulated_step_ms") == 0
    step = None if alone or wait is None or mean is None else max(0.0, mean - wait)
    cores = _whole(finite(run.machine.get("cores_allowed")))
    job = _inner(_inner(result, "config"), "job")
    spent = numbers.get("cpu_s_per_sample")
    budget = numbers.get("budget_mb")
    busy = sum(stage.busy_s or 0.0 for stage in run.stages.values())
    waiting = sum(stage.waiting_s or 0.0 for stage in run.stages.values())
    reading = run.stages["read"].busy_s if "read" in run.stages else None
    samples = numbers.get("samples")
    size = _whole(finite(job.get("image_size")))
    return Evidence(
        batch_size=round(float(np.median(measured.samples))) if len(measured) else None,
        steps=len(measured),
        step_s=step,
        wait_s=None if step is None else wait,
        simulated=bool(numbers.get("simulated_step_ms")),
        loader_alone=rate if alone else None,
        decode_limit=numbers.get("decode_limit_samples_per_s"),
        storage_limit=numbers.get("storage_limit_samples_per_s"),
        cores=cores,
        cores_busy=spent * rate if spent is not None and rate is not None else None,
        threads=_whole(finite(job.get("threads"))) or cores,
        loop_work_s=busy / samples if busy and samples else None,
        loop_read_s=reading / samples if reading and samples else None,
        idle=waiting / (busy + waiting) if busy else None,
        budget=None if budget is None else round(budget * 1e6),
        slots=_whole(numbers.get("slots")),
        slots_wanted=_whole(numbers.get("slots_wanted")),
        image_size=(size, size) if size else None,
        notes=run.problems if run.status == "complete" else (_ending(run), *run.problems),
    )


def _ending(run: Run) -> str:
    return f"the run is {run.status}" + (f": {run.cause}" if run.cause else "")


def _inner(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)
