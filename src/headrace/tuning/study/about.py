"""What is said of a study beside its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.tuning.study.document import Study

__all__ = ["About"]


@dataclass(frozen=True)
class About:
    """Words and settings for the tables."""

    name: str
    about: str = ""
    mixture: str | None = None
    overrides: tuple[str, ...] = ()
    measured: str = ""
    #: By label, the label of the row that a row is compared with; the baseline has none.
    against: Mapping[str, str] | None = None

    def base_of(self, label: str) -> str | None:
        """The row that a row is compared with."""
        return (self.against or {}).get(label)

    @staticmethod
    def of(study: Study, overrides: Sequence[str] = ()) -> About:
        """Of a study and what the command line added."""
        settings = study.settings
        long = f"{settings.seconds:g} s" if settings.seconds else f"{settings.steps} batches"
        step = f", a step of {settings.compute_ms:g} ms simulated" if settings.compute_ms else ""
        rounds = f"{study.repeats} {'round' if study.repeats == 1 else 'rounds'}"
        measured = (
            f"{long} a run after {settings.warmup} batches and {settings.warmup_seconds:g} s of "
            f"warm-up{step}, {rounds}"
        )
        if study.train is not None:
            measured = f"training runs of {study.train}, {rounds}"
        return About(
            study.name,
            study.about,
            study.mixture,
            (*study.overrides, *overrides),
            measured,
            {e.label: e.against or study.baseline for e in study.entries[1:]},
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "about": self.about,
            "mixture": self.mixture,
            "overrides": list(self.overrides),
            "measured": self.measured,
        }
