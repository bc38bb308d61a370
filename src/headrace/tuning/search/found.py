"""What a search found: plain values, with the steps that led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from headrace.tuning.attempt import Status
from headrace.tuning.decision import Contrast
from headrace.tuning.search.space import Changes

__all__ = ["CUT", "Ended", "Found", "Stage", "Step", "Tried"]

Stage: TypeAlias = Literal["ladder", "sampler"]
#: Noted of what looked better when the time was over.
CUT = "no time to run it again"
#: Why a search ended.
Ended: TypeAlias = Literal["all tried", "time", "interrupted", "nothing runs"]


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration against the one that was best until then."""

    changes: Changes  #: against where the search began
    difference: Changes  #: against the best until then
    status: Status
    cause: str | None
    contrast: Contrast
    rate: float | None  #: samples/s, median of its rounds
    kept: bool = False
    note: str = ""  #: why it was not tried further, where its figures do not say


@dataclass(frozen=True, slots=True)
class Step:
    """Configurations that ran in the same round as the best until then."""

    stage: Stage
    key: str  #: the option of a step of the ladder; "combinations"
    tried: tuple[Tried, ...]
    rate: float | None  #: samples/s of the best until then, in this step


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search."""

    best: Changes  #: what the search ended with, before it was proved
    proof: Contrast  #: of it against the start, run again in turns
    proof_rates: tuple[float | None, float | None]  #: samples/s of the start and of the best
    steps: tuple[Step, ...]
    ended: Ended
    sampler: str | None  #: which one was used; None: it did not come to that
    runs: int  #: in all; some may be known from an earlier call
    start_status: Status  #: of the start, in its first run or its proof
    cause: str | None = None  #: why it ended, of "nothing runs"
    proof_status: Status = "not run"  #: of the best in its proof

    @property
    def winner(self) -> Changes:
        """What to take: the best unless it failed its proof, which leaves the start."""
        return self.best if self.proved or self.unproved else {}

    @property
    def proved(self) -> bool:
        """Whether the best was faster when both were run again, or ran and the start did not."""
        runs_alone = self.proof_status == "pass" and self.start_status != "pass"
        return bool(self.best) and (self.proof.verdict == "faster" or runs_alone)

    @property
    def unproved(self) -> bool:
        """Whether there was no time to run the best again, often enough to tell."""
        begun = self.proof_status in ("not run", "interrupted") or self.proof.rounds == 1
        return bool(self.best) and begun and not self.proved

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        values: Mapping[str, Any] = asdict(self)
        return {**values, "winner": dict(self.winner), "proved": self.proved}
