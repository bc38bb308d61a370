"""What result.json holds: the figures of a run, written by `summarise` and read by `read_run`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.measure.columns import Batches, Memory, finite
from headrace.measure.runs import (
    BATCHES,
    RESULT,
    RUN_FILES,
    Outcome,
    RunReader,
    inner,
    objects,
    read_text,
)

_log = logging.getLogger("headrace")

#: Lines of the log that a report shows.
_LOG_LINES = 40


@dataclass(frozen=True, slots=True)
class Share:
    """A dataset's share of the samples, requested and actual; None: not known."""

    requested: float | None
    actual: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Seconds a stage worked and waited, over all its workers; None: not known."""

    busy_s: float | None
    waiting_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run, read."""

    folder: Path
    label: str  #: what reports call it; unlike that of any other run in the same page
    backend: str  #: what was measured: "headrace" or a baseline
    status: str  #: a `Status`
    cause: str | None  #: why it is not complete
    shuffle: str | None  #: how samples were shuffled, in the run's own words
    #: Figures of result.json, and those that follow from the batches where it has none.
    numbers: Mapping[str, float]
    mixture: Mapping[str, Share]
    stages: Mapping[str, Stage]
    batches: Batches
    memory: Memory
    config: str  #: the configuration as text
    machine: Mapping[str, Any]
    log: str  #: the end of the log
    stated: Mapping[str, Any]  #: all of result.json
    doctor: Mapping[str, Any]  #: all of doctor.json
    problems: tuple[str, ...]  #: what is missing or damaged, in sentences


def read_run(folder: Path) -> Run:
    """Read a run folder; only one that is missing, or is not a run, is an error."""
    if not folder.is_dir():
        raise DataError(
            f"no such run folder: {str(folder)!r}", remedy=f"Give the folder that holds {RESULT}"
        )
    if not any((folder / name).exists() for name in RUN_FILES):
        raise DataError(
            f"{str(folder)!r} is not a run folder: it has none of {', '.join(RUN_FILES)}",
            remedy="Give a folder that `headrace bench` or a training run has written",
        )
    reader = RunReader(folder)
    result, batches, memory, doctor = reader.result, reader.batches, reader.memory, reader.doctor
    numbers = {key: n for key, value in result.items() if (n := finite(value)) is not None}
    for key, value in reader.figures().items():
        if (number := finite(value)) is not None:
            numbers.setdefault(key, number)
    if len(held := memory.anon_mb[~np.isnan(memory.anon_mb)]):
        numbers.setdefault("peak_anon_mb", float(held.max()))
    rate, limit = numbers.get("samples_per_s"), numbers.get("decode_limit_samples_per_s")
    if rate is not None and limit:
        numbers.setdefault("limit_ratio", rate / limit)
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
        machine=reader.machine,
        log=read_text(folder / "log.txt", tail=_LOG_LINES)
        or read_text(folder / "train.log", tail=_LOG_LINES),
        stated=result,
        doctor=doctor,
        problems=reader.problems,
    )


def _mixture(stated: Any, batches: Batches) -> dict[str, Share]:
    """The shares that the result states; actual ones that it does not are counted."""
    shares = {
        name: Share(finite(share.get("asked")), finite(share.get("served")))
        for name, share in objects(stated)
    }
    if served := batches.shares():
        for name in dict.fromkeys([*shares, *served]):
            share = shares.get(name, Share(None, None))
            if share.actual is None:
                shares[name] = Share(share.requested, served.get(name, 0.0))
    return shares


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


# -- what was done ---------------------------------------------------------------------------------

#: Options of a loader that say how samples are made, not what they are.
_HOW = (
    *("batch_size", "seed", "workers", "threads", "memory", "keep_free", "on_error", "max_errors"),
    *("rank", "world_size", "pin", "decode", "mixture", "options"),
)
#: What a source of a mixture is drawn from and by, beside its name.
_DRAWN = ("weight", "split", "offset", "offset_seconds", "samples_per_episode", "camera")


def work_of(run: Run) -> dict[str, Any]:
    """What a step of a run consists of, by name; what the run does not say is left out.

    Runs with different work cannot be called faster or slower than each other.
    """
    config = inner(run.stated, "config")
    job, data = inner(config, "job"), inner(config, "data")
    loader = job or inner(data, "loader") or inner(config, "loader")
    work = {
        key.replace("_", " "): value
        for key, value in loader.items()
        if key not in _HOW and value is not None
    }
    match work.get("image size"):
        case [height, width] if height == width:
            work["image size"] = height
    options = inner(job, "options")
    for key, name in (
        ("resize", "resize"),
        ("metadata.mode", "metadata"),
        ("sampling.samples_per_episode", "samples per episode"),
    ):
        if options.get(key) is not None:
            work[name] = "dataset" if options[key] == "dataset_only" else options[key]
    listed = inner(job, "mixture").get("sources")
    if isinstance(listed, list):
        known = [source for source in listed if isinstance(source, dict)]
        work["mixture"] = {
            str(source.get("name")): [source.get(key) for key in _DRAWN] for source in known
        }
    elif run.mixture:
        requested = {} if data else {n: x.requested or 0.0 for n, x in run.mixture.items()}
        work["mixture"] = {name: round(requested.get(name, 0.0), 3) for name in run.mixture}
        work["data"] = {key: data[key] for key in ("defaults", "sources", "synth") if key in data}
    program, simulated = run.stated.get("program"), run.numbers.get("simulated_step_ms")
    if isinstance(program, str):
        work["step"] = "a training step"
        work["model"] = inner(config, "model")
    elif simulated is not None:
        work["step"] = f"a simulated step of {simulated:g} ms" if simulated else "no step"
    if work.get("step", "no step") != "no step" and "batch_size" in loader:
        work["batch size"] = loader["batch_size"]
    return work


def different_work(runs: Sequence[Run]) -> list[str]:
    """In what the work of the runs differs, in a few words each; none where it is the same."""
    works = [work_of(run) for run in runs]
    found = []
    for key in dict.fromkeys(key for work in works for key in work):
        # A loader's options are stated where they are not the default, and the size always.
        option = key not in ("mixture", "data", "step", "model", "batch size")
        values = [
            work.get(key, "default" if option and "image size" in work else None) for work in works
        ]
        known = [value for value in values if value is not None]
        if all(value == known[0] for value in known):
            continue
        shown = [f"{len(value)} sources" if key == "mixture" else str(value) for value in known]
        apart = list(dict.fromkeys(shown)) if key not in ("data", "model") else []
        found.append(f"{key} ({' against '.join(apart)})" if len(apart) > 1 else key)
    return found


# -- summing up ------------------------------------------------------------------------------------


def summarise(
    folder: Path, request: Mapping[str, Any], outcome: Outcome, limit: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Every figure of one run, as `result.json` has them; None where it is not known.

    `request` says what was run (name, backend, job, settings, machine), `limit` what the machine
    allows.
    """
    measured = outcome.measured or {}
    reader = RunReader(folder)
    batches = reader.batches
    # Where records are lost, only the time of those that are left goes with their samples.
    whole = not reader.damaged[BATCHES]
    if not whole:
        _log.warning("%s: %s", folder, *reader.problems)
    figures = batches.figures(measured.get("elapsed_s") if whole else None)
    rate, samples = figures["samples_per_s"], figures["samples"]
    decode = limit["decode_limit_samples_per_s"] if limit else None
    spent, read = _difference(measured, "cpu_s"), _difference(measured, "read_bytes")
    before, after = (measured.get(k, {}).get("figures", {}) for k in ("before", "after"))
    if "bytes_read" in after:
        read = after["bytes_read"] - before.get("bytes_read", 0)
    count = measured.get("samples") or samples  # that time and bytes were spent on
    asked, served = limit["asked"] if limit else {}, batches.shares()
    return {
        "name": request["name"],
        "backend": request["backend"],
        "status": outcome.status,
        "cause": outcome.cause,
        **figures,
        "damaged_records": reader.damaged[BATCHES],
        "simulated_step_ms": request["settings"]["compute_ms"],
        "import_s": measured.get("import_s"),
        "setup_s": measured.get("setup_s"),
        "first_batch_s": measured.get("first_batch_s"),
        "close_s": measured.get("close_s"),
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
        "bytes_read_per_sample": read / count if read is not None and count else None,
        "cpu_s_per_sample": spent / count if spent is not None and count else None,
        "validations": measured.get("validations"),
        "validation_start_s": measured.get("validation_start_s"),
        "validation_start_max_s": measured.get("validation_start_max_s"),
        "mixture": {
            name: {
                "asked": asked.get(name),
                "served": served.get(name, 0.0) if served else None,
            }
            for name in {**asked, **served}
        },
        "stages": _stages(before, after),
        "trace": measured.get("trace"),
        "shuffle": request.get("shuffle"),
        "remote_sources": request.get("remote_sources", {}),
        "unchecked_sources": after.get("unchecked"),  # frames without checksums: `index --quick`
        "conversion": request.get("conversion"),
        "config": {"job": request["job"], "settings": request["settings"]},
        "machine": request["machine"],
    }


def _difference(measured: Mapping[str, Any], key: str) -> float | None:
    if "after" not in measured:
        return None
    return float(measured["after"][key] - measured["before"][key])


def _stages(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds that all workers together were busy in each stage, and waited for work."""
    if "stages" not in after:
        return {}
    earlier = before.get("stages", {})
    found = {
        name: {"busy_s": seconds - earlier.get(name, 0.0), "waiting_s": 0.0}
        for name, seconds in after["stages"].items()
    }
    if "waiting_s" in after:
        waited = after["waiting_s"] - before.get("waiting_s", 0.0)
        found["waiting for work"] = {"busy_s": 0.0, "waiting_s": waited}
    return found
