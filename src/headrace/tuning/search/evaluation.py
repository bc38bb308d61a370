"""Answering a search by guarded benchmarks, each remembered on disk before the next begins."""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from headrace.errors import HeadraceError, UsageError
from headrace.measure.job import Job, jobs_of
from headrace.tuning.attempt import Attempt
from headrace.tuning.guard import Guard
from headrace.tuning.search.asked import Asked
from headrace.tuning.search.space import Changes, overrides, words
from headrace.tuning.study.ledger import Ledger
from headrace.tuning.trial import Trial, Watch, try_once

__all__ = ["Evaluation", "Tell"]

#: Told of each run that has ended: what it was, its round, what became of it.
Tell: TypeAlias = Callable[[str, int, Attempt], None]

_TIMES, _PATIENCE_S = 3.0, 20.0


class Evaluation:
    """An `Evaluate` that runs a backend; the same question is answered from the ledger."""

    def __init__(
        self,
        asked: Asked,
        folder: Path,
        *,
        watch: Watch = lambda _title, _sight: None,
        tell: Tell = lambda _words, _number, _attempt: None,
    ) -> None:
        self._asked, self._folder = asked, folder
        self._watch, self._tell = watch, tell
        self._ledger = Ledger(folder / "ledger.jsonl")
        self._walls: list[float] = []  # of runs that passed
        self.made = 0  #: runs that were made now

    @property
    def remembered(self) -> int:
        """Runs that are in the ledger."""
        return len(self._ledger)

    def __call__(self, changes: Changes, name: str, number: int, left_s: float) -> Attempt:
        """One guarded run, or the one that is remembered."""
        asked, guard = self._asked, self._asked.guard
        change = words(changes)
        try:
            trial = self._trial(changes, name)
        except HeadraceError as error:
            return Attempt("invalid configuration", str(error))
        known = self._ledger.find(trial, number, guard)
        if known is not None:
            return known
        if left_s <= asked.least_s:
            return Attempt("skipped", "the time is over")
        # What takes several times as long as others did will not be the fastest.
        limit = min(guard.timeout_s, _PATIENCE_S + _TIMES * max(self._walls, default=math.inf))
        cut = left_s < limit
        title = f"{name.split(':')[0]}, {change}, {left_s / 60:.1f} min left"
        attempt = self._try(
            replace(trial, label=asked.backend),
            replace(guard, timeout_s=min(limit, left_s)),
            title,
        )
        if cut and attempt.status == "timed out":
            return Attempt("skipped", "the time was over before it ended")
        self._ledger.add(trial, number, guard, attempt)
        if attempt.status == "pass" and attempt.wall_s is not None:
            self._walls.append(attempt.wall_s)
        self.made += attempt.status != "interrupted"
        self._tell(f"{name.split(':')[0].split(' of ')[0]}: {change}", number, attempt)
        return attempt

    def knows(self, changes: Changes, name: str, number: int) -> bool:
        """Whether a question is answered from the ledger."""
        try:
            trial = self._trial(changes, name)
        except HeadraceError:
            return False
        return self._ledger.find(trial, number, self._asked.guard) is not None

    def _trial(self, changes: Changes, name: str) -> Trial:
        asked = self._asked
        jobs = jobs_of(asked.mixture, [*asked.given, *overrides(changes)], [asked.backend])
        job = Job.from_dict(jobs[asked.backend].to_dict())
        # The question is part of the key: a run is only compared with those of its own round.
        return Trial(name, words(changes), asked.backend, job, asked.settings)

    def _try(self, trial: Trial, guard: Guard, title: str) -> Attempt:
        try:
            attempt = try_once(trial, self._folder / "runs", guard, title=title, watch=self._watch)
        except HeadraceError as error:
            # Of this side alone: a folder that cannot be written.
            raise UsageError(error.problem, remedy="Free some space, or give --out") from None
        except KeyboardInterrupt:
            return Attempt("interrupted", "interrupted (Ctrl-C)")
        if "No space left" in (attempt.cause or "") and _full(self._folder):
            # The run's own files did not fit: that says nothing of its options.
            raise OSError(errno.ENOSPC, "No space left on device", attempt.folder)
        return attempt


def _full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < 1 << 20
