"""Which combinations to try when single changes have been: a small sampler of our own.

The same interface as Optuna's (`optuna_sampler.py`), so that a search works without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, Protocol

from headrace.tuning.search.space import Changes, Space

__all__ = ["Neighbours", "Sampler"]

#: How many options change at once, and how often: single changes the ladder has tried already.
_CHANGES, _WEIGHTS = (1, 2, 3), (2, 5, 3)
_MATTERED = 3  # times as likely as other options
_TRIES = 300


class Sampler(Protocol):
    """Proposes configurations and learns what became of them."""

    name: str

    def tell(self, changes: Changes, ratio: float | None) -> None:
        """A configuration's speed over the start's; None: it failed."""

    def ask(
        self,
        best: Changes,
        mattered: Collection[str],
        allowed: Callable[[Changes], bool],
    ) -> Changes | None:
        """A configuration that is `allowed`; None: none was found."""


class Neighbours:
    """Random changes of one to three options of the best, mostly of those that mattered."""

    name = "random neighbours"

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._random = random.Random(seed)

    def tell(self, changes: Changes, ratio: float | None) -> None:
        """It learns nothing but what is best, which it is told when it is asked."""

    def ask(
        self, best: Changes, mattered: Collection[str], allowed: Callable[[Changes], bool]
    ) -> Changes | None:
        """The next one."""
        space, draw = self._space, self._random
        if not space.knobs:
            return None
        weights = [_MATTERED if knob.key in mattered else 1 for knob in space.knobs]
        for _ in range(_TRIES):
            changes: dict[str, Any] = dict(best)
            for _ in range(draw.choices(_CHANGES, _WEIGHTS)[0]):
                [knob] = draw.choices(space.knobs, weights)
                if steps := space.steps(knob, changes):
                    changes = draw.choice(steps)
            if changes != best and allowed(changes):
                return changes
        return None
