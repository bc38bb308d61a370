"""A run folder as it is, whole or damaged: what can be read, and what could not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.measure.report.batches import Batches, Memory
from headrace.measure.report.records import Lines, finite, objects, read_object, read_text

__all__ = ["FILES", "Run", "Share", "Stage", "read_run"]

#: What a run folder holds; one of them makes it one.
FILES = ("result.json", "batch_times.jsonl", "memory.jsonl")
_LOG_LINES = 40


@dataclass(frozen=True, slots=True)
class Share:
    """A dataset's share of the samples, as asked for and as served; None: not known."""

    asked: float | None
    served: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Seconds a stage worked and waited, over all its threads; None: not known."""

    busy_s: float | None
    waiting_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run, read."""

    folder: Path
    #: What the reports call it; unlike that of any other run in the same page.
    label: str
    #: What was measured: "headrace" or a rival.
    backend: str
    #: "complete", or what else the run says of itself; "incomplete" where it says nothing.
    status: str
    #: Why it is not complete.
    cause: str | None
    #: How samples were shuffled, in the run's own words.
    shuffle: str | None
    #: Figures of result.json, and those that follow from the batches where it has none.
    numbers: Mapping[str, float]
    mixture: Mapping[str, Share]
    stages: Mapping[str, Stage]
    batches: Batches
    memory: Memory
    #: The configuration as text.
    config: str
    machine: Mapping[str, Any]
    #: The end of the log.
    log: str
    #: What is missing or damaged, in sentences.
    problems: tuple[str, ...]


def read_run(folder: Path) -> Run:
    """Read a run folder; only one that is not there, or is none, is an error."""
    if not folder.is_dir():
        raise DataError(
            f"no such run folder: {str(folder)!r}", remedy="Give the folder that holds result.json"
        )
    if not any((folder / name).exists() for name in FILES):
        raise DataError(
            f"{str(folder)!r} is not a run folder: it has none of {', '.join(FILES)}",
            remedy="Give a folder that `headrace bench` or a training run has written",
        )
    result, wrong = read_object(folder / "result.json")
    batch_lines, memory_lines = Lines(folder / "batch_times.jsonl"), Lines(folder / "memory.jsonl")
    batches, memory = Batches.of(batch_lines), Memory.of(memory_lines)
    numbers = {key: n for key, value in result.items() if (n := finite(value)) is not None}
    _derive(numbers, batches)
    machine = result.get("machine")
    if not isinstance(machine, dict) or not machine:
        machine, _ = read_object(folder / "machine.json")
    config = read_text(folder / "config.yaml")
    if not config and result.get("config"):
        config = json.dumps(result["config"], indent=2, ensure_ascii=False)
    return Run(
        folder=folder,
        label=_text(result.get("name")) or folder.resolve().name,
        backend=_text(result.get("backend")) or "unknown",
        status=_text(result.get("status")) or "incomplete",
        cause=_text(result.get("cause")),
        shuffle=_text(result.get("shuffle")),
        numbers=numbers,
        mixture=_mixture(result.get("mixture"), batches),
        stages={
            name: Stage(finite(stage.get("busy_s")), finite(stage.get("waiting_s")))
            for name, stage in objects(result.get("stages"))
        },
        batches=batches,
        memory=memory,
        config=config,
        machine=machine,
        log=read_text(folder / "log.txt", tail=_LOG_LINES)
        or read_text(folder / "train.log", tail=_LOG_LINES),
        problems=tuple(p for p in (wrong, batch_lines.problem, memory_lines.problem) if p),
    )


def _derive(numbers: dict[str, float], batches: Batches) -> None:
    """Fill in what follows from the batches, for a run that was killed before its result."""
    measured = batches.measured()
    times = measured.dt_s[~np.isnan(measured.dt_s)]
    total = float(times.sum())
    if total > 0:
        numbers.setdefault("batches_per_s", len(times) / total)
        if samples := float(measured.samples[~np.isnan(measured.dt_s)].sum()):
            numbers.setdefault("samples_per_s", samples / total)
        numbers.setdefault("mean_s", total / len(times))
        numbers.setdefault("max_s", float(times.max()))
        for percent in (50, 90, 99):
            numbers.setdefault(f"p{percent}_s", float(np.percentile(times, percent)))
    rate, limit = numbers.get("samples_per_s"), numbers.get("decode_limit_samples_per_s")
    if rate is not None and limit:
        numbers.setdefault("limit_ratio", rate / limit)


def _mixture(value: Any, batches: Batches) -> dict[str, Share]:
    """The shares that the result states; what was served is else counted in the batches."""
    shares = {
        name: Share(finite(share.get("asked")), finite(share.get("served")))
        for name, share in objects(value)
    }
    counts = batches.measured().counts.sum(axis=0)
    total = float(counts.sum())
    if total > 0:
        served = dict(zip(batches.names, (counts / total).tolist(), strict=True))
        for name in [*shares, *(name for name in served if name not in shares)]:
            share = shares.get(name, Share(None, None))
            if share.served is None:
                shares[name] = Share(share.asked, served.get(name, 0.0))
    return shares


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
