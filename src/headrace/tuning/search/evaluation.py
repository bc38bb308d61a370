"""Answering a search by guarded benchmarks, each remembered on disk before the next begins."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from headrace.errors import HeadraceError, UsageError
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.job import Job
from headrace.measure.jobs import jobs_of
from headrace.tuning.attempt import Attempt
from headrace.tuning.guard import Guard
from headrace.tuning.search.space import Changes, overrides, words
from headrace.tuning.study.ledger import Ledger
from headrace.tuning.trial import Trial, Watch, try_once

__all__ = ["Evaluation", "Tell"]

#: Told of each run that has ended: what it was, its round, what became of it.
Tell: TypeAlias = Callable[[str, int, Attempt], None]


class Evaluation:
    """An `Evaluate` that runs a backend; the same question is answered from the ledger."""

    def __init__(
        self,
        mixture: str,
        given: Sequence[str],
        backend: str,
        settings: BenchSettings,
        guard: Guard,
        folder: Path,
        *,
        watch: Watch = lambda _title, _sight: None,
        tell: Tell = lambda _words, _number, _attempt: None,
    ) -> None:
        self._mixture, self._given, self._backend = mixture, given, backend
        self._settings, self._guard, self._folder = settings, guard, folder
        self._watch, self._tell = watch, tell
        self._ledger = Ledger(folder / "ledger.jsonl")
        self.made = 0  #: runs that were made now

    def __call__(self, changes: Changes, name: str, number: int, left_s: float) -> Attempt:
        """One guarded run, or the one that is remembered."""
        change = words(changes)
        try:
            job = jobs_of(self._mixture, [*self._given, *overrides(changes)], [self._backend])
        except HeadraceError as error:
            return Attempt("invalid configuration", str(error))
        plain = Job.from_dict(job[self._backend].to_dict())
        # The question is part of the key: a run is only compared with those of its own round.
        trial = Trial(name, change, self._backend, plain, self._settings)
        known = self._ledger.find(trial, number, self._guard)
        if known is not None:
            return known
        if left_s <= 0:
            return Attempt("skipped", "the time is over")
        cut = left_s < self._guard.timeout_s
        guard = replace(self._guard, timeout_s=left_s) if cut else self._guard
        title = f"{name.split(':')[0]}, {change}, {left_s / 60:.1f} min left"
        attempt = self._try(replace(trial, label=self._backend), guard, title)
        if cut and attempt.status == "timed out":
            return Attempt("skipped", "the time was over before it ended")
        self._ledger.add(trial, number, self._guard, attempt)
        self.made += attempt.status != "interrupted"
        self._tell(f"{name}, {change}" if "proof" not in name else name, number, attempt)
        return attempt

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
