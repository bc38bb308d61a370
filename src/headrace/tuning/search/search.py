"""The search: one change at a time, then combinations, then the winner against the start again.

It runs nothing itself: `evaluate` does, and a made-up one serves for tests. Every question is
named, so that an evaluation which remembers what it has answered makes a search go on where an
earlier one was cut off: the same answers lead to the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.measure.peers.knob import Knob
from headrace.tuning.attempt import Attempt
from headrace.tuning.decision import Contrast, contrast
from headrace.tuning.row import Row, row_of
from headrace.tuning.search.found import Ended, Found, Stage, Step, Tried
from headrace.tuning.search.judge import Rules, hopeful, idle, is_kept, mattered
from headrace.tuning.search.sampler import Sampler
from headrace.tuning.search.space import Changes, Failures, Space, words
from headrace.tuning.search.time_budget import TimeBudget

__all__ = ["PROOF", "Evaluate", "search"]

#: Rounds of the winner against the start at the end.
PROOF = 3
#: Of a sampler's step: combinations that share a run of the best until then.
_TOGETHER = 2
#: Nothing is to be found out after one of these.
_HOPELESS = ("not installed", "invalid configuration", "failed")


class Evaluate(Protocol):
    """Runs a configuration and says how it went, whatever happens."""

    def __call__(self, changes: Changes, name: str, number: int, left_s: float) -> Attempt:
        """Round `number` of the question `name`, in at most so many seconds.

        "interrupted" ends the search; "skipped" says that the time was not enough.
        """


@dataclass
class _Candidate:
    """A configuration in a step, round by round beside the best until then."""

    changes: Changes
    attempts: list[Attempt]
    note: str = ""
    base: list[Attempt] = field(default_factory=list)

    @property
    def row(self) -> Row:
        return row_of("", "", "", self.attempts)

    @property
    def base_row(self) -> Row:
        return row_of("", "", "", self.base)

    @property
    def contrast(self) -> Contrast:
        return contrast(self.row, self.base_row)

    @property
    def first_rate(self) -> float:
        return self.attempts[0].samples_per_s or 0.0


class _Ended(Exception):
    def __init__(self, why: Ended, cause: str | None = None) -> None:
        super().__init__(why)
        self.why, self.cause = why, cause


def search(
    space: Space,
    evaluate: Evaluate,
    budget: TimeBudget,
    sampler: Sampler | None,
    *,
    rules: Rules | None = None,
    resumed: bool = False,
    progress: Callable[[Found], None] = lambda _found: None,
) -> Found:
    """Find the fastest configuration in the time there is; without a sampler, by the ladder alone.

    `resumed` says that `evaluate` remembers answers. `progress` is told after every step what is
    known so far.
    """
    run = _Search(space, evaluate, budget, sampler, rules or Rules(), progress, resumed)
    why: Ended = "all tried"
    cause = None
    try:
        run.ladder()
        run.sample()
    except _Ended as ended:
        why, cause = ended.why, ended.cause
    except KeyboardInterrupt:
        why = "interrupted"
    if why in ("all tried", "time"):
        try:
            run.prove()
        except _Ended as ended:
            why = ended.why
        except KeyboardInterrupt:
            why = "interrupted"
    return run.found(why, cause)


class _Search:
    """A search under way."""

    def __init__(
        self,
        space: Space,
        evaluate: Evaluate,
        budget: TimeBudget,
        sampler: Sampler | None,
        rules: Rules,
        progress: Callable[[Found], None],
        resumed: bool,
    ) -> None:
        self._space, self._evaluate, self._budget = space, evaluate, budget
        self._sampler, self._rules, self._progress = sampler, rules, progress
        self._best: Changes = {}
        self._gain = 1.0  # of the best over the start, as the steps say
        self._steps: list[Step] = []
        self._failures = Failures()
        self._seen: list[Changes] = [{}]
        self._mattered: set[str] = set()
        self._runs = 0
        self._proof: tuple[list[Attempt], list[Attempt]] = ([], [])
        self._sampled = False
        self._start: Attempt | None = None
        self._remembered = resumed  # the last answer was

    # -- the ladder and the sampler ---------------------------------------------------------------

    def ladder(self) -> None:
        """One option at a time, in the order of the space."""
        for knob in self._space.knobs:
            candidates = self._space.steps(knob, self._best)
            if candidates:
                self._step("ladder", knob.key, candidates, knob)

    def sample(self) -> None:
        """Combinations, until the time is over or none is left."""
        sampler = self._sampler
        if sampler is None:
            return
        sampler.tell({}, 1.0)
        while True:
            asked: list[Changes] = []

            def allowed(changes: Changes, asked: Sequence[Changes] = asked) -> bool:
                return changes not in asked and self._allowed(changes)

            for _ in range(_TOGETHER):
                changes = sampler.ask(self._best, self._mattered, allowed)
                if changes is not None:
                    asked.append(changes)
            if not asked:
                return
            self._sampled = True
            before = self._best
            self._step("sampler", "combinations", asked)
            difference = self._space.difference(self._best, before)
            if len(difference) > 1:
                self._trim({key: before.get(key, self._space.start.get(key)) for key in difference})

    def _trim(self, before: Changes) -> None:
        """Of changes that came together, undo those that had no part in it."""
        for key, value in before.items():
            without = _Candidate(self._space.normal({**self._best, key: value}), [])
            if self._known(without.changes)[0]:
                continue
            name = f"sampler {len(self._steps) + 1} without {key}"
            for number in range(self._rules.rounds):
                if not self._room(2):
                    raise _Ended("time")
                for mine in (number % 2 == 1, number % 2 == 0):
                    changes = without.changes if mine else self._best
                    told = without.attempts if mine else without.base
                    side = "" if mine else ": best so far"
                    told.append(self._run(changes, f"{name}{side}", number))
                if not idle(without.contrast, self._rules):
                    break
            gone = without if idle(without.contrast, self._rules) else None
            self._finish("sampler", f"without {key}", None, [without], gone)

    def _allowed(self, changes: Changes) -> bool:
        everything = {**self._space.start, **changes}
        if changes in self._seen or self._failures.hold(everything):
            return False
        return self._space.problem(changes) is None

    def _step(
        self, stage: Stage, key: str, asked: Sequence[Changes], knob: Knob | None = None
    ) -> None:
        """Run candidates in the round of the best; run again what looks better; keep one."""
        candidates = [_Candidate(changes, *self._known(changes)) for changes in asked]
        runnable = [each for each in candidates if not each.attempts]
        if runnable and not self._room(2):
            raise _Ended("time")
        name = f"{stage} {len(self._steps) + 1}"
        kept = over = None
        try:
            if runnable:
                base = self._run(self._best, f"{name}: best so far", 0)
                self._check_start(base)
            for number, each in enumerate(runnable):
                if number and not self._room(1):
                    raise _Ended("time")
                each.attempts.append(self._run(each.changes, name, 0))
                each.base.append(base)
            kept = self._confirm(name, runnable)
        except _Ended as ended:
            over = ended
        if any(each.attempts for each in candidates):
            self._finish(stage, key, knob, [c for c in candidates if c.attempts], kept)
        if over is not None:
            raise over

    def _known(self, changes: Changes) -> tuple[list[Attempt], str]:
        """What can be said of a configuration without running it."""
        problem = self._space.problem(changes)
        if problem is not None:
            return [Attempt("invalid configuration", problem)], "not run"
        if self._failures.hold({**self._space.start, **changes}):
            return [Attempt("skipped", "a value of it failed before")], "not run"
        return [], ""

    def _confirm(self, name: str, candidates: Sequence[_Candidate]) -> _Candidate | None:
        """Further rounds for what looks better, the likeliest first; the one to keep."""
        for each in sorted(candidates, key=lambda each: each.first_rate, reverse=True):
            if each.row.status != "pass":
                continue
            if not any(each.base_row.rates):
                return each
            title = f"{name}: {words(each.changes)}"
            for number in range(1, self._rules.rounds):
                if each.row.status != "pass" or not hopeful(each.contrast, self._rules):
                    break
                if not self._room(2):
                    each.note = "no time to run it again"
                    return None
                # In turns, the other one first each time.
                for mine in (number % 2 == 1, number % 2 == 0):
                    if mine:
                        each.attempts.append(self._run(each.changes, title, number))
                    else:
                        beside = self._run(self._best, f"{title}: best so far", number)
                        each.base.append(beside)
            if each.contrast.rounds > 1 and is_kept(
                each.row, each.base_row, each.contrast, self._rules
            ):
                return each
        return None

    def _finish(
        self,
        stage: Stage,
        key: str,
        knob: Knob | None,
        candidates: Sequence[_Candidate],
        kept: _Candidate | None,
    ) -> None:
        """Write a step down and learn from it."""
        best, gain = self._best, self._gain
        tried = []
        rate = None
        for each in candidates:
            row, compared, changes = each.row, each.contrast, each.changes
            difference = self._space.difference(changes, best)
            self._seen.append(changes)
            if row.status != "pass" and any(each.base_row.rates):
                # In the same round the best ran: so it is the change that does not.
                self._failures.add({knob.key: difference[knob.key]} if knob else difference)
            if mattered(compared, self._rules) or each is kept:
                self._mattered |= difference.keys()
            if self._sampler is not None and each.base:
                self._sampler.tell(changes, compared.ratio and gain * compared.ratio)
            rate = rate or each.base_row.figures["samples_per_s"]
            found = row.figures["samples_per_s"]
            tried.append(
                Tried(
                    changes,
                    difference,
                    row.status,
                    row.cause,
                    compared,
                    found,
                    each is kept,
                    each.note,
                )
            )
        if kept is not None:
            self._best, self._gain = kept.changes, gain * (kept.contrast.ratio or 1.0)
        self._steps.append(Step(stage, key, tuple(tried), rate))
        self._progress(self.found("time", None))

    # -- the proof --------------------------------------------------------------------------------

    def prove(self) -> None:
        """The best against the start, in turns: the only comparison that is reported as a gain."""
        if not self._best:
            return
        name = f"proof of {words(self._best)}"
        for number in range(PROOF):
            if not self._remembered and not self._budget.fits(2):
                raise _Ended("time")
            for best in (number % 2 == 1, number % 2 == 0):
                changes, side = (self._best, "best") if best else ({}, "start")
                self._proof[best].append(self._run(changes, f"{name}: {side}", number))
            if self._proof[1][-1].status != "pass":
                return

    # -- running ----------------------------------------------------------------------------------

    def _room(self, runs: int) -> bool:
        """Whether so many runs fit beside those of the proof.

        While answers are remembered, the next one may be as well: `evaluate` says when the time is
        really over.
        """
        return self._remembered or self._budget.fits(runs + 2 * PROOF)

    def _run(self, changes: Changes, name: str, number: int) -> Attempt:
        begun = self._budget.now
        attempt = self._evaluate(changes, name, number, self._budget.left_s)
        if attempt.status == "interrupted":
            raise _Ended("interrupted")
        if attempt.status == "skipped":
            raise _Ended("time")
        self._runs += 1
        took = self._budget.now - begun
        self._remembered = took < 0.01 * (attempt.wall_s or 0.0)
        if attempt.status == "pass":
            # A run that is remembered took no time now, but says how long the next one will take.
            self._budget.spent(max(took, attempt.wall_s or 0.0))
        return attempt

    def _check_start(self, attempt: Attempt) -> None:
        if self._start is None:
            self._start = attempt
            if attempt.status in _HOPELESS:
                raise _Ended("nothing runs", f"{attempt.status}: {attempt.cause}")

    def found(self, why: Ended, cause: str | None) -> Found:
        """What is known now."""
        start, best = (row_of("", "", "", attempts) for attempts in self._proof)
        proof = contrast(best, start) if self._best else Contrast("not known")
        status = start.status
        if status == "not run" and self._start is not None:
            status = self._start.status
        return Found(
            dict(self._best),
            proof,
            (start.figures["samples_per_s"], best.figures["samples_per_s"]),
            tuple(self._steps),
            why,
            self._sampler.name if self._sampler is not None and self._sampled else None,
            self._runs,
            status,
            cause,
            best.status,
        )
