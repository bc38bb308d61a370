"""Which row to take, and whether it differs from the baseline at all. Pure.

Rounds are run in turns, so a row and the baseline of the same round saw the same machine: their
ratio is taken round by round, and its range over the rounds is the noise. A difference counts if
that range does not hold 1 and the row's median lies outside what the baseline itself reached.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from headrace.tuning.row import Row

__all__ = ["Contrast", "Decision", "Verdict", "contrast", "decide"]

#: Rounds from which a difference is stated without a caution.
_ENOUGH = 3

Verdict: TypeAlias = Literal["faster", "slower", "no difference", "one round", "not known"]


@dataclass(frozen=True, slots=True)
class Contrast:
    """A row against another, in samples a second."""

    verdict: Verdict
    ratio: float | None = None  #: median of the rounds
    low: float | None = None
    high: float | None = None
    rounds: int = 0

    @property
    def words(self) -> str:
        """As it stands in a table."""
        if self.ratio is None or self.low is None or self.high is None:
            return "-"
        if self.rounds == 1:
            return f"{self.ratio:.2f}"
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rows say."""

    baseline: str
    best: str | None  #: the fastest row that passed, and so kept the floor, in all its rounds
    contrast: Contrast  #: of that row against the baseline
    words: str  #: for people

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Decision:
        """The inverse of `to_dict`."""
        return Decision(**{**values, "contrast": Contrast(**values["contrast"])})


def contrast(row: Row, base: Row) -> Contrast:
    """A row against another, of the rounds that both passed."""
    pairs = zip(row.rates, base.rates, strict=False)
    ratios = [a / b for a, b in pairs if a is not None and b]
    if not ratios:
        return Contrast("not known")
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    if len(ratios) == 1:
        return Contrast("one round", ratio, low, high, 1)
    spread, median = base.spread, row.figures["samples_per_s"]
    inside = spread is not None and median is not None and spread[0] <= median <= spread[1]
    verdict: Verdict = "faster" if ratio > 1 else "slower"
    if inside or low <= 1 <= high:
        verdict = "no difference"
    return Contrast(verdict, ratio, low, high, len(ratios))


def decide(rows: Sequence[Row]) -> Decision:
    """The best of the rows, the first of which is the baseline."""
    base = rows[0]
    passed = [r for r in rows if r.status == "pass" and r.figures["samples_per_s"] is not None]
    if not passed:
        states = ", ".join(f"{row.label}: {row.status}" for row in rows)
        return Decision(
            base.label, None, Contrast("not known"), f"No row passed with a figure ({states})."
        )
    best = max(passed, key=lambda row: _speed(row, base))
    found = contrast(best, base)
    rate = f"{best.figures['samples_per_s']:,.0f} samples/s"
    if best is base:
        words = f"Keep the baseline, {base.label} ({rate}): no row that kept the floor is faster."
    elif base.status != "pass" or found.verdict == "not known":
        words = (
            f"Take {best.label} ({rate}): the baseline, {base.label}, did not pass "
            f"({base.status}), so there is nothing to compare it with."
        )
    elif found.verdict == "one round":
        words = (
            f"{best.label} was the fastest ({rate}, {found.words} of {base.label}), but one round "
            "shows no spread: repeat it to tell a difference from noise."
        )
    elif found.verdict == "no difference":
        words = (
            f"No difference: {best.label} was the fastest ({rate}), but at {found.words} of "
            f"{base.label} in {found.rounds} rounds it is inside the noise. Keep the baseline."
        )
    else:
        words = (
            f"Take {best.label} ({rate}): {found.words} of {base.label} in {found.rounds} rounds."
        )
        if found.rounds < _ENOUGH:
            # The best of many rows is also the luckiest.
            words += f" {found.rounds} rounds are few: confirm it with more."
    return Decision(base.label, best.label, found, words)


def _speed(row: Row, base: Row) -> tuple[float, float]:
    """By what rows are ranked: the ratio within rounds, and else the rate.

    Medians of rates would compare one row's lucky round with another's unlucky one.
    """
    ratio = contrast(row, base).ratio if base.status == "pass" else None
    return ratio or 0.0, row.figures["samples_per_s"] or 0.0
