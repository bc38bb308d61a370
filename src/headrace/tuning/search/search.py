"""The search: one change at a time, then combinations, then the winner against the start again.

It runs nothing itself: `evaluate` does, and a made-up one serves for tests. Every question is
named, so that an evaluation which remembers what it has answered makes a search go on where an
earlier one was cut off: the same answers lead to the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, TypeAlias

from headrace.measure.baselines.baseline import Knob
from headrace.tuning.attempt import Attempt
from headrace.tuning.decision import Contrast, contrast
from headrace.tuning.row import Row, row_of
from headrace.tuning.search.found import CUT, Ended, Found, Stage, Step, Tried
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

#: Whether a question was answered before: the configuration, its name and its round.
Known: TypeAlias = Callable[[Changes, str, int], bool]


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
    known: Known = lambda _changes, _name, _number: False,
    progress: Callable[[Found], None] = lambda _found: None,
) -> Found:
    """Find the fastest configuration in the time there is; without a sampler, by the ladder alone.

    `known` says which questions `evaluate` has answered before, and so needs no time for.
    `progress` is told after every step what was found so far.
    """
    run = _Search(space, evaluate, budget, sampler, rules or Rules(), known, progress)
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
        known: Known,
        progress: Callable[[Found], None],
    ) -> None:
        self._space, self._evaluate, self._budget = space, evaluate, budget
        self._sampler, self._rules = sampler, rules
        self._known, self._progress = known, progress
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
            if self._foretold(without.changes)[0]:
                continue
            name = f"sampler {len(self._steps) + 1} without {key}"
            for number in range(self._rules.rounds):
                self._duel(without, name, number)
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
        candidates = [_Candidate(changes, *self._foretold(changes)) for changes in asked]
        runnable = [each for each in candidates if not each.attempts]
        name = f"{stage} {len(self._steps) + 1}"
        kept = over = None
        try:
            if runnable:
                # As long as there is nothing to prove, a look at more options is worth more.
                reserve = 2 * PROOF if self._best else 0
                together = [self._best, *(each.changes for each in runnable)]
                base, *ran = self._round(together, name, 0, reserve)
                for each, attempt in zip(runnable, ran, strict=True):
                    each.attempts.append(attempt)
                    each.base.append(base)
            kept = self._confirm(name, runnable)
        except _Ended as ended:
            over = ended
        if any(each.attempts for each in candidates):
            self._finish(stage, key, knob, [c for c in candidates if c.attempts], kept)
        if over is not None:
            raise over

    def _foretold(self, changes: Changes) -> tuple[list[Attempt], str]:
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
                try:
                    self._duel(each, title, number)
                except _Ended:
                    each.note = CUT
                    raise
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
        best = _Candidate(self._best, self._proof[1], base=self._proof[0])
        for number in range(PROOF):
            self._duel(best, name, number, against={}, reserve=0)
            if best.attempts[-1].status != "pass":
                return

    # -- running ----------------------------------------------------------------------------------

    def _duel(
        self,
        each: _Candidate,
        name: str,
        number: int,
        *,
        against: Changes | None = None,
        reserve: int = 2 * PROOF,
    ) -> None:
        """A round of two, the other one first each time."""
        base = self._best if against is None else against
        pair = [each.changes, base] if number % 2 else [base, each.changes]
        ran = self._round(pair, name, number, reserve)
        each.attempts.append(ran[0] if number % 2 else ran[1])
        each.base.append(ran[1] if number % 2 else ran[0])

    def _round(
        self, configurations: Sequence[Changes], name: str, number: int, reserve: int = 2 * PROOF
    ) -> list[Attempt]:
        """Runs that are compared with each other: all of them now, or all from before.

        A round that was cut off is taken anew as a whole, since an hour later the machine is
        another one. It is not begun unless it fits, with the runs of the proof.
        """
        for take in count(1):
            title = name if take == 1 else f"{name}, take {take}"
            known = [self._known(changes, title, number) for changes in configurations]
            if all(known) or not any(known):
                break
        if not all(known) and not self._budget.fits(len(known) + reserve):
            raise _Ended("time")
        return [self._run(changes, title, number) for changes in configurations]

    def _run(self, changes: Changes, name: str, number: int) -> Attempt:
        begun = self._budget.now
        attempt = self._evaluate(changes, name, number, self._budget.left_s)
        if attempt.status == "interrupted":
            raise _Ended("interrupted")
        if attempt.status == "skipped":
            raise _Ended("time")
        self._runs += 1
        if attempt.status == "pass":
            # A run from before took no time now, but says how long the next one will take.
            self._budget.spent(max(self._budget.now - begun, attempt.wall_s or 0.0))
        self._check_start(attempt)
        return attempt

    def _check_start(self, attempt: Attempt) -> None:
        if self._start is None:  # the first run of all is the start's
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
