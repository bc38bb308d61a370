"""The kinds of work on one shard that may run in another process: plain values in and out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.catalog.check import CheckJob, check_shard
from headrace.catalog.scan import ScanJob, cannot_write, scan_shard
from headrace.errors import HeadraceError, UsageError
from headrace.formats.features import Schema, read_features
from headrace.formats.rlds import FEATURES_FILE

__all__ = ["perform"]


@lru_cache(maxsize=4)  # the time of change is part of the key
def _schema(folder: str, changed_ns: int) -> Schema:  # noqa: ARG001
    return read_features(Path(folder) / FEATURES_FILE)


def perform(
    kind: str, job: dict[str, Any], report: Callable[[int, int], None], *, mapped: bool
) -> dict[str, Any]:
    """Perform a task; `report(bytes, steps)` hears of its progress; `mapped` see `open_shard`."""
    features = Path(job["folder"]) / FEATURES_FILE
    try:
        schema = _schema(job["folder"], features.stat().st_mtime_ns)
        if kind == "scan":
            return asdict(scan_shard(ScanJob(**job), schema, report, mapped=mapped))
        if kind == "check":
            return asdict(check_shard(CheckJob(**job), schema, report, mapped=mapped))
    except OSError as error:
        raise cannot_write(error, str(job.get("out", job["folder"]))) from None
    except HeadraceError as error:
        raise error.within(file=str(Path(job["folder"], job["file"]))) from None
    raise UsageError(f"no task {kind!r}")
