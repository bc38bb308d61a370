"""A row of an experiment table: the rounds of one trial together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.tuning.attempt import FIGURES, Attempt, Status

__all__ = ["Row", "row_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration, with the median of each figure over its rounds.

    A row passes if all its rounds did; else it has the status and the cause of the first that did
    not, and the figures of those that did.
    """

    label: str
    change: str  #: what differs from the baseline; empty for the baseline
    backend: str
    status: Status
    cause: str | None
    figures: Mapping[str, float | None]  #: by the names of `attempt.FIGURES`
    attempts: tuple[Attempt, ...]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Samples a second round by round; None for a round that did not pass."""
        return tuple(a.samples_per_s if a.status == "pass" else None for a in self.attempts)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Lowest and highest samples a second of the rounds that passed."""
        known = [rate for rate in self.rates if rate is not None]
        return (min(known), max(known)) if known else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to say, each sentence once."""
        found = [self.cause] if self.cause else []
        found += [note for attempt in self.attempts for note in attempt.notes]
        if (start := self.figures.get("validation_start_s")) is not None:
            found.append(f"validation: first batch after {start:.2f} s")
        return tuple(dict.fromkeys(found))

    @property
    def folders(self) -> tuple[str, ...]:
        """The run folders, round by round."""
        return tuple(attempt.folder for attempt in self.attempts if attempt.folder)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "label": self.label,
            "change": self.change,
            "backend": self.backend,
            "status": self.status,
            "cause": self.cause,
            **self.figures,
            "samples_per_s_spread": list(self.spread) if self.spread else None,
            "rounds": [attempt.to_dict() for attempt in self.attempts],
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Row:
        """The inverse of `to_dict`."""
        attempts = [Attempt.from_dict(each) for each in values["rounds"]]
        return row_of(values["label"], values["change"], values["backend"], attempts)


def row_of(label: str, change: str, backend: str, attempts: Sequence[Attempt]) -> Row:
    """The row of some rounds.

    >>> runs = [Attempt("pass", samples_per_s=rate) for rate in (90.0, 110.0, 100.0)]
    >>> row = row_of("batch 128", "loader.batch_size=128", "headrace", runs)
    >>> row.status, row.figures["samples_per_s"], row.spread
    ('pass', 100.0, (90.0, 110.0))
    """
    passed = [each for each in attempts if each.status == "pass"]
    wrong = [each for each in attempts if each.status != "pass"]
    status: Status = "pass"
    cause = None
    if wrong:
        status, cause = wrong[0].status, wrong[0].cause
        if passed:
            cause = f"{len(wrong)} of {len(attempts)} rounds: {cause or status}"
    elif not attempts:
        status = "not run"
    # Of a row that never passed, what was measured until then still says something.
    counted = passed or wrong
    figures = {name: _median([getattr(each, name) for each in counted]) for name in FIGURES}
    for name, worst in (("peak_anon_mb", max), ("peak_rss_mb", max), ("min_available_mb", min)):
        known = [value for a in attempts if (value := getattr(a, name)) is not None]
        figures[name] = worst(known) if known else None
    return Row(label, change, backend, status, cause, figures, tuple(attempts))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
