"""A verdict: one sentence, what it rests on, and what to change."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Change", "Kind", "Verdict"]

Kind: TypeAlias = Literal[
    "compute",
    "decode",
    "storage",
    "copy",
    "memory",
    "python",
    "data",
    "feeds",
    "held up",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Change:
    """Something to do about it."""

    what: str
    gain: float | None  #: times as many steps/s; None: not known

    def __str__(self) -> str:
        return self.what if self.gain is None else f"{self.what}: about {self.gain:.1f}x"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run."""

    kind: Kind
    healthy: bool
    headline: str
    evidence: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)
