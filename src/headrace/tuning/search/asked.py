"""What a search was asked to do, and the commands that follow from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.documents import parse_override
from headrace.measure.job import BenchSettings
from headrace.tuning.guard import Guard
from headrace.tuning.search.space import Changes, overrides

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """A backend on a mixture, as a person typed it."""

    mixture: str
    given: tuple[str, ...] = ()  #: overrides of every run; options among them stay as they are
    backend: str = "headrace"
    settings: BenchSettings = field(default_factory=lambda: BenchSettings(seconds=8.0))
    guard: Guard = field(default_factory=Guard)
    minutes: float = 15.0
    reorder: bool = False  #: whether options that shuffle worse or better may be tried
    seed: int = 0  #: of the sampler

    def options(self) -> Mapping[str, Any]:
        """The backend's own options that were given, by their keys.

        >>> Asked("m", ("root=/d", "torch.workers=4", "loader.batch_size=8"), "torch").options()
        {'torch.workers': 4, 'loader.batch_size': 8}
        """
        found = {}
        for override in self.given:
            key, value = parse_override(override)
            head, _, rest = key.partition(".")
            if head in (self.backend, "loader"):
                found[f"loader.{rest}" if head == "headrace" else key] = value
        return found

    @property
    def least_s(self) -> float:
        """What a run takes at least: what is measured, and the warm-up."""
        return self.settings.warmup_seconds + (self.settings.seconds or 0.0)

    def command(self, changes: Changes) -> str:
        """One line to paste that runs a configuration."""
        parts = ["headrace", "bench", self.mixture, *self.given, "--backend", self.backend]
        return shlex.join([*parts, *overrides(changes)])

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "mixture": self.mixture,
            "overrides": list(self.given),
            "backend": self.backend,
            "settings": self.settings.to_dict(),
            "guard": self.guard.to_dict(),
            "minutes": self.minutes,
            "reorder": self.reorder,
            "seed": self.seed,
        }
