"""Validation in the middle of a run: what starting it takes, for backends that can."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Opened, Validates
from headrace.measure.bench.settings import BenchSettings

__all__ = ["Validations"]


class Validations:
    """A pass of a few validation batches every so many training batches."""

    def __init__(
        self,
        backend: str,
        opened: Opened,
        settings: BenchSettings,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self._opened, self._settings, self._report = opened, settings, report
        self.seconds = 0.0  #: spent in them, which is no time of the training's
        self._starts: list[float] = []
        if settings.validate_every and not isinstance(opened, Validates):
            raise UsageError(
                f"the backend {backend!r} has no validation",
                remedy="Leave validate_every out, or run headrace or tfdata",
            )

    def after(self, batches: int) -> None:
        """Validate, if it is time for it."""
        every = self._settings.validate_every
        if not every or batches % every or not isinstance(self._opened, Validates):
            return
        began = time.perf_counter()
        first = None
        for number, batch in enumerate(self._opened.validation(self._settings.validate_batches)):
            batch.frames[:, 0, 0, 0, 0].sum()
            first = time.perf_counter() - began if first is None else first
            del batch
            self._report({"phase": "validating", "alive": (len(self._starts), number)})
        self.seconds += time.perf_counter() - began
        if first is not None:
            self._starts.append(first)

    def figures(self) -> dict[str, Any]:
        """How long the first batch of a validation took, and how often there was one."""
        if not self._starts:
            return {}
        return {
            "validations": len(self._starts),
            "validation_start_s": sum(self._starts) / len(self._starts),
            "validation_start_max_s": max(self._starts),
            "validation_s": self.seconds,
        }
