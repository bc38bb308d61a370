"""Tuning a backend for real: the search over guarded benchmarks, in a folder that can go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.engine.memory import available_memory
from headrace.errors import UsageError
from headrace.jobs import allowed_cpus
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed
from headrace.measure.bench.leftover import end_leftovers
from headrace.measure.jobs import jobs_of
from headrace.measure.machine import machine_facts
from headrace.tuning.guard import check_floor
from headrace.tuning.search.asked import Asked
from headrace.tuning.search.evaluation import Evaluation, Tell
from headrace.tuning.search.found import Found
from headrace.tuning.search.judge import Rules
from headrace.tuning.search.optuna_sampler import best_sampler
from headrace.tuning.search.search import PROOF, search
from headrace.tuning.search.space import Space, space_of
from headrace.tuning.search.time_budget import TimeBudget
from headrace.tuning.search.write import write_found
from headrace.tuning.study.ledger import disk_full, locked
from headrace.tuning.trial import Watch

__all__ = ["Tuned", "tune"]

#: What starting a process and drawing its report take at least, beside what is measured.
_AROUND_S = 2.0
#: headrace has nothing to tune: only more than this is worth a word, and a report.
_OWN_KEEP = 1.05


@dataclass(frozen=True)
class Tuned:
    """What was found, and where it lies."""

    folder: Path
    found: Found
    made: int  #: runs that were made now; the others were known from before
    fixed: tuple[str, ...]  #: options that were given and so left alone
    machine: dict[str, Any]


def tune(
    asked: Asked,
    folder: Path,
    *,
    watch: Watch = lambda _title, _sight: None,
    tell: Tell = lambda _words, _number, _attempt: None,
    begun: Callable[[Space], None] = lambda _space: None,
) -> Tuned:
    """Search the options of a backend; the same call goes on where an earlier one ended.

    `begun` is told the space before anything runs.
    """
    if asked.minutes <= 0:
        raise UsageError(f"minutes is {asked.minutes:g}", remedy="Give a number above 0")
    baseline = find_baseline(asked.backend)
    check_installed(baseline)
    jobs_of(asked.mixture, asked.given, [asked.backend])
    own = asked.backend == "headrace"
    space, fixed = space_of(baseline, allowed_cpus(), asked.options(), reorder=asked.reorder)
    space.check({})
    if not space.knobs:
        raise UsageError(
            f"the backend {asked.backend} has no option left to try",
            remedy=f"Remove some of {', '.join(fixed)}" if fixed else "There is nothing to tune",
        )
    machine = machine_facts(None)
    _check_floor(asked, machine)
    begun(space)
    with locked(folder):
        end_leftovers(folder / "runs")
        evaluation = Evaluation(asked, folder, watch=watch, tell=tell)
        budget = TimeBudget(60 * asked.minutes, expected_s=asked.least_s + _AROUND_S)
        if not evaluation.remembered and not budget.fits(2 + 2 * PROOF):
            raise UsageError(
                f"{asked.minutes:g} minutes hold no comparison: a run takes at least "
                f"{budget.run_s:.0f} s, and {2 + 2 * PROOF} are needed",
                remedy="Raise --minutes, or lower --seconds",
            )
        try:
            found = search(
                space,
                evaluation,
                budget,
                None if own else best_sampler(space, asked.seed),
                rules=Rules(keep=_OWN_KEEP) if own else Rules(),
                known=evaluation.knows,
                progress=lambda found: write_found(folder, found, asked, machine),
            )
            write_found(folder, found, asked, machine)
        except OSError as error:
            raise disk_full(error, folder) from None
    return Tuned(folder, found, evaluation.made, fixed, machine)


def _check_floor(asked: Asked, machine: dict[str, Any]) -> None:
    total = int(machine.get("memory_bytes") or 0)
    try:
        check_floor(asked.guard.min_available, available_memory(), total)
    except UsageError as error:
        raise UsageError(
            error.problem.replace("guard.min_available", "--min-available"),
            remedy="Lower --min-available, or end what holds the memory",
        ) from None
