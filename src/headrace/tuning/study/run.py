"""Running a study: rounds in turns, each run written down before the next begins."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from headrace.engine.machine import available_memory
from headrace.errors import HeadraceError, UsageError
from headrace.measure.bench.leftover import end_leftovers
from headrace.measure.machine import machine_facts
from headrace.tuning.attempt import Attempt
from headrace.tuning.decision import Decision, decide
from headrace.tuning.guard import Guard, check_floor
from headrace.tuning.row import Row, row_of
from headrace.tuning.study.about import About
from headrace.tuning.study.ledger import Ledger, disk_full, locked
from headrace.tuning.study.write import write_results
from headrace.tuning.trial import Trial, Watch, try_once

__all__ = ["Finished", "order", "run_study"]

#: Told of each run that has ended: its trial, the number of its round, what became of it.
Tell: TypeAlias = Callable[[Trial, int, Attempt], None]
#: Rounds that follow would only tell the same.
_SETTLED = ("invalid configuration", "not installed", "skipped")


@dataclass(frozen=True)
class Finished:
    """What a study found."""

    folder: Path
    rows: tuple[Row, ...]
    decision: Decision
    interrupted: bool
    repeated: int  #: runs that were made now; the others were known from before


def order(trials: int, repeats: int) -> list[tuple[int, int]]:
    """(round, trial) in the order they run: all trials in each round, each round begins later.

    A machine's speed drifts, so rounds are interleaved: what is compared ran within minutes. The
    turn rotates, so nobody always runs first or after the same one.

    >>> order(3, 2)
    [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]
    """
    return [(r, (t + r) % trials) for r in range(repeats) for t in range(trials)]


def run_study(
    trials: Sequence[Trial],
    folder: Path,
    about: About,
    *,
    guard: Guard,
    repeats: int,
    again: bool = False,
    watch: Watch = lambda _title, _sight: None,
    tell: Tell = lambda _trial, _round, _attempt: None,
) -> Finished:
    """Run what is not finished yet; the first trial is the baseline.

    A row that did not pass is not run in later rounds. Ctrl-C ends it; what was finished is kept,
    and the same call goes on from there.
    """
    machine = machine_facts(None)
    check_floor(guard.min_available, available_memory(), _total(machine))
    with locked(folder):
        end_leftovers(folder / "runs")
        path = folder / "ledger.jsonl"
        if again:
            path.unlink(missing_ok=True)
        state = _State(trials, folder, about, machine, Ledger(path), guard)
        try:
            return _run(state, repeats, watch, tell)
        except OSError as error:
            raise disk_full(error, folder) from None


@dataclass
class _State:
    trials: Sequence[Trial]
    folder: Path
    about: About
    machine: dict[str, Any]
    ledger: Ledger
    guard: Guard

    def __post_init__(self) -> None:
        self.attempts: list[list[Attempt]] = [[] for _ in self.trials]

    def rows(self) -> tuple[Row, ...]:
        return tuple(
            row_of(trial.label, trial.change, trial.backend, attempts)
            for trial, attempts in zip(self.trials, self.attempts, strict=True)
        )

    def write(self) -> tuple[tuple[Row, ...], Decision]:
        rows = self.rows()
        decision = decide(rows)
        write_results(self.folder, self.about, rows, decision, self.guard, self.machine)
        return rows, decision


def _run(state: _State, repeats: int, watch: Watch, tell: Tell) -> Finished:
    made = 0
    interrupted = False
    for number, which in order(len(state.trials), repeats):
        trial, mine = state.trials[which], state.attempts[which]
        if mine and mine[-1].status != "pass":
            continue
        attempt = state.ledger.find(trial, number, state.guard)
        if attempt is None:
            title = f"{trial.label}, round {number + 1} of {repeats}"
            attempt = _try(trial, state, title, watch)
            state.ledger.add(trial, number, state.guard, attempt)
            made += attempt.status not in (*_SETTLED, "interrupted")
            tell(trial, number, attempt)
        mine.append(attempt)
        if attempt.status == "interrupted":
            interrupted = True
            break
        if made:
            state.write()
    rows, decision = state.write()
    return Finished(state.folder, rows, decision, interrupted, made)


def _try(trial: Trial, state: _State, title: str, watch: Watch) -> Attempt:
    runs = state.folder / "runs"
    try:
        attempt = try_once(trial, runs, state.guard, title=title, watch=watch)
    except HeadraceError as error:
        # Of this side alone: a folder that cannot be written. Of the trial all is in the attempt.
        raise UsageError(error.problem, remedy="Free some space, or give --out") from None
    except KeyboardInterrupt:
        return Attempt("interrupted", "interrupted (Ctrl-C)")
    full = trial.command is None and "No space left" in (attempt.cause or "")
    if full and shutil.disk_usage(state.folder).free < 1 << 20:
        # The run's own files did not fit: that says nothing of its configuration.
        raise OSError(errno.ENOSPC, "No space left on device", attempt.folder)
    return attempt


def _total(machine: dict[str, Any]) -> int:
    return int(machine.get("memory_bytes") or 0)
