"""From a mixture and overrides, as people type them, to the job of each backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config import Mixture
from headrace.config.documents import parse_override
from headrace.config.typed import nearest
from headrace.errors import UsageError
from headrace.measure.baselines import BASELINES, find_baseline
from headrace.measure.job import Job

__all__ = ["JOB_KEYS", "OWN_KEYS", "jobs_of"]

#: `loader.` keys that every backend is told.
JOB_KEYS = ("batch_size", "image_size", "seed", "metadata", "workers")
#: `loader.` keys that only headrace's own loader has; the same as `headrace.` ones.
OWN_KEYS = ("memory", "keep_free", "on_error", "max_errors", "resize")


def jobs_of(
    mixture: str | Path, overrides: Sequence[str], backends: Sequence[str]
) -> dict[str, Job]:
    """A job for each backend: the same but for the backend's own options.

    Overrides are of the mixture (`root`, `defaults.*`, `sources.NAME.*`), of the loader
    (`loader.*`), or of a backend (`tfdata.*`); the last one of a key counts.
    """
    ours: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {backend: {} for backend in backends}
    rest = []
    for override in overrides:
        head, _, key = override.partition("=")[0].strip().partition(".")
        if head == "loader" and key in JOB_KEYS:
            ours[key] = parse_override(override)[1]
        elif head == "loader" and key in OWN_KEYS:
            options.setdefault("headrace", {})[key] = parse_override(override)[1]
        elif head == "loader":
            known = (*JOB_KEYS, *OWN_KEYS)
            raise UsageError(
                f"the loader has no option {key!r}",
                remedy=f"{nearest(key, known)}There are {', '.join(known)}",
            )
        elif not key and head in (*JOB_KEYS, *OWN_KEYS):
            raise UsageError(f"unknown key {head}", remedy=f"Did you mean 'loader.{head}'?")
        elif head in BASELINES:
            options.setdefault(head, {})[key] = parse_override(override)[1]
        else:
            rest.append(override)
    _check_numbers(ours)
    loaded = Mixture.load(mixture, rest)
    jobs = {}
    for backend in backends:
        known_options = find_baseline(backend).options
        for key in options[backend]:
            if known_options is not None and key not in known_options:
                raise UsageError(
                    f"the backend {backend} has no option {key!r}",
                    remedy=f"{nearest(key, known_options)}There are {', '.join(known_options)}",
                )
        jobs[backend] = Job(loaded, **ours, options=options[backend])
    return jobs


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Numbers that no backend can do anything with."""
    for key, least in (("batch_size", 1), ("image_size", 1), ("workers", 0)):
        value = values.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            raise UsageError(
                f"loader.{key} is {value!r}", remedy=f"Give a whole number from {least} upwards"
            )
    seed = values.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise UsageError(f"loader.seed is {seed!r}", remedy="Give a whole number")
    metadata = values.get("metadata", "full")
    if metadata not in ("none", "dataset", "full"):
        raise UsageError(f"loader.metadata is {metadata!r}", remedy="Give none, dataset or full")
