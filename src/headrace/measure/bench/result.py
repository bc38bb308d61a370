"""From what was recorded to `result.json`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from headrace.measure.bench.supervise import Outcome

__all__ = ["read_records", "summarise"]

_PARTS = 5  # of the measured time, for the spread within a run


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; half a line at the end, of a killed run, is left out."""
    found = []
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def summarise(
    folder: Path, request: dict[str, Any], outcome: Outcome, limit: dict[str, Any] | None
) -> dict[str, Any]:
    """Every figure of one run; None where it is not known."""
    measured = outcome.measured or {}
    records = [r for r in read_records(folder / "batch_times.jsonl") if not r["is_warmup"]]
    steps = np.array([r["dt_s"] for r in records])
    samples = sum(r["samples"] for r in records)
    elapsed = measured.get("elapsed_s") or float(steps.sum()) or None
    rate = samples / elapsed if elapsed and samples else None
    decode = limit["decode_limit_samples_per_s"] if limit else None
    spent, read = _difference(measured, "cpu_s"), _difference(measured, "read_bytes")
    before, after = (measured.get(k, {}).get("figures", {}) for k in ("before", "after"))
    if "bytes_read" in after:
        read = after["bytes_read"] - before.get("bytes_read", 0)
    return {
        "name": request["name"],
        "backend": request["backend"],
        "status": outcome.status,
        "cause": outcome.cause,
        "samples_per_s": rate,
        "samples_per_s_spread": _spread(records),
        "batches_per_s": len(records) / elapsed if elapsed and records else None,
        "batches": len(records),
        "samples": samples,
        "elapsed_s": elapsed,
        "mean_s": float(steps.mean()) if len(steps) else None,
        **{f"p{p}_s": _percentile(steps, p) for p in (50, 90, 99)},
        "max_s": float(steps.max()) if len(steps) else None,
        "simulated_step_ms": request["settings"]["compute_ms"],
        "import_s": measured.get("import_s"),
        "setup_s": measured.get("setup_s"),
        "first_batch_s": measured.get("first_batch_s"),
        "stall_s_per_step": _mean(records, "fetch_dt_s"),
        "peak_rss_mb": outcome.peak_rss / 1e6,
        "peak_anon_mb": outcome.peak_anonymous / 1e6,
        "min_available_mb": outcome.min_available / 1e6 if outcome.min_available else None,
        "wall_s": outcome.wall_s,
        "budget_mb": after["budget"] / 1e6 if after.get("budget") else None,
        "slots": after.get("slots"),
        "slots_wanted": after.get("slots_wanted"),
        "decode_limit_samples_per_s": decode,
        "limit_ratio": rate / decode if rate and decode else None,
        "storage_limit_bytes_per_s": limit["storage_limit_bytes_per_s"] if limit else None,
        "storage_limit_samples_per_s": limit["storage_limit_samples_per_s"] if limit else None,
        "bytes_read_per_sample": read / samples if read is not None and samples else None,
        "cpu_s_per_sample": spent / samples if spent is not None and samples else None,
        "validations": measured.get("validations"),
        "validation_start_s": measured.get("validation_start_s"),
        "validation_start_max_s": measured.get("validation_start_max_s"),
        "mixture": _mixture(records, limit),
        "stages": _stages(before, after),
        "shuffle": request.get("shuffle"),
        "conversion": request.get("conversion"),
        "config": {"job": request["job"], "settings": request["settings"]},
        "machine": request["machine"],
    }


def _percentile(values: np.ndarray[Any, Any], p: int) -> float | None:
    return float(np.percentile(values, p)) if len(values) else None


def _mean(records: list[dict[str, Any]], key: str) -> float | None:
    return float(np.mean([r[key] for r in records])) if records else None


def _spread(records: list[dict[str, Any]]) -> list[float] | None:
    """Lowest and highest rate of fifths of the measured batches."""
    if len(records) < 2 * _PARTS:
        return None
    # By the clock, not by the sum of the steps: what happens between two steps takes time too.
    times = [records[0]["t_s"] - records[0]["dt_s"], *(r["t_s"] for r in records)]
    rates = []
    for part in np.array_split(np.arange(len(records)), _PARTS):
        samples = sum(records[i]["samples"] for i in part)
        rates.append(samples / (times[part[-1] + 1] - times[part[0]]))
    return [min(rates), max(rates)]


def _difference(measured: dict[str, Any], key: str) -> float | None:
    if "after" not in measured:
        return None
    return float(measured["after"][key] - measured["before"][key])


def _mixture(
    records: list[dict[str, Any]], limit: dict[str, Any] | None
) -> dict[str, dict[str, float | None]]:
    """Share of each source, asked and served."""
    served: Counter[str] = Counter()
    for record in records:
        served.update(record["dataset_counts"])
    total = sum(served.values())
    asked = limit["asked"] if limit else {}
    return {
        name: {"asked": asked.get(name), "served": served[name] / total if total else None}
        for name in {**asked, **served}
    }


def _stages(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds that all threads together were busy in each stage, and waited for work."""
    if "stages" not in after:
        return {}
    busy = {
        name: seconds - before.get("stages", {}).get(name, 0.0)
        for name, seconds in after["stages"].items()
    }
    found = {name: {"busy_s": seconds, "waiting_s": 0.0} for name, seconds in busy.items()}
    if "waiting_s" in after:
        waited = after["waiting_s"] - before.get("waiting_s", 0.0)
        found["waiting for work"] = {"busy_s": 0.0, "waiting_s": waited}
    return found
