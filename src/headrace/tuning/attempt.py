"""One run of a trial, whatever became of it: plain values, one line of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

__all__ = ["FIGURES", "Attempt", "Status"]

Status: TypeAlias = Literal[
    "pass",
    "failed",
    "oom-killed",
    "floor reached",
    "stalled",
    "timed out",
    "invalid configuration",
    "not installed",
    "skipped",
    "interrupted",
    "not run",
]

#: What is measured, in the order of the tables.
FIGURES = (
    "samples_per_s",
    "steps_per_s",
    "p50_s",
    "p90_s",
    "p99_s",
    "loader_share",
    "first_batch_s",
    "peak_anon_mb",
    "peak_rss_mb",
    "min_available_mb",
    "validation_start_s",
    "wall_s",
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a run ended, and its figures as far as it came; None: not known."""

    status: Status
    cause: str | None = None  #: why it is no pass
    folder: str | None = None  #: the run's own, as a path
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    #: Of the step, the share that waited for data; only where a step is simulated or real.
    loader_share: float | None = None
    first_batch_s: float | None = None
    peak_anon_mb: float | None = None
    peak_rss_mb: float | None = None
    min_available_mb: float | None = None  #: least memory left, of the machine and its groups
    validation_start_s: float | None = None
    wall_s: float | None = None
    #: With what the status is explained: the child ignored SIGTERM, what else was found.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "notes": list(self.notes)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Attempt:
        """The inverse of `to_dict`; keys of a later version are left out."""
        known = {each.name for each in fields(Attempt)}
        kept = {key: value for key, value in values.items() if key in known}
        return Attempt(**{**kept, "notes": tuple(kept.get("notes", ()))})
