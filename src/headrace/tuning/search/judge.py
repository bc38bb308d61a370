"""Whether a change is kept: the rules of a step, apart from running it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tuning.decision import Contrast
from headrace.tuning.row import Row

__all__ = ["HINT", "KEEP", "Rules", "hopeful", "idle", "is_kept", "mattered"]

#: A first round must show so much before a change is run again. Runs of a few seconds differ by
#: as much on a quiet machine; on a busy one the further rounds sort it out.
HINT = 1.02
#: The least median that is worth an option to carry; also what noise seldom feigns in three rounds.
KEEP = 1.03
ROUNDS = 3  # of a change that looks better, with the best until then taking turns


@dataclass(frozen=True, slots=True)
class Rules:
    """How much a change must show."""

    hint: float = HINT
    keep: float = KEEP
    rounds: int = ROUNDS


def hopeful(contrast: Contrast, rules: Rules) -> bool:
    """Whether further rounds could still keep it: it was better in every round so far."""
    return (
        contrast.ratio is not None
        and contrast.low is not None
        and contrast.low > 1
        and contrast.ratio >= rules.hint
    )


def is_kept(row: Row, base: Row, contrast: Contrast, rules: Rules) -> bool:
    """Better than the best until then beyond the noise, by enough to matter."""
    if row.status != "pass":
        return False
    if not any(base.rates):  # what was best until then cannot run: anything that does is better
        return True
    return contrast.verdict == "faster" and (contrast.ratio or 0.0) >= rules.keep


def idle(contrast: Contrast, rules: Rules) -> bool:
    """Whether a change may be undone: without it nothing that matters is lost."""
    return contrast.ratio is not None and contrast.ratio > 2 - rules.keep


def mattered(contrast: Contrast, rules: Rules) -> bool:
    """Whether an option does anything, for better or worse: a sampler looks at it more."""
    ratio = contrast.ratio
    return ratio is not None and not (2 - rules.keep) < ratio < rules.keep
