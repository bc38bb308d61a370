"""The search behind `headrace tune`: which configurations are tried, and which one is proved.

Configurations run in rounds, each with a run of the defaults: a configuration's score is its speed
over theirs in the same round, because a machine's speed drifts. First comes every value of every
option by itself, those of likely effect first, and between them what looked faster, combined; then
Optuna's TPE proposes combinations. At the end the best and the defaults run again, in turns, and
only that comparison counts: the best of many was also the luckiest. If it is slower than the
defaults in one of these rounds, it is out; the search continues, or the next best is tried.

It runs nothing itself: `evaluate` does, and may remember. Rounds have names, and the same answers
lead to the same questions, so a search that was cut off resumes by what is remembered.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, Literal, TypeAlias

from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Baseline, Knob
from headrace.tuning.study.results import Contrast, Row, contrast
from headrace.tuning.study.trial import Attempt, Trial

#: A configuration: what differs from the defaults, by the keys of overrides.
Changes: TypeAlias = Mapping[str, Any]
#: The same as the place of each option's value, 0 for the default: what Optuna samples.
Places: TypeAlias = Mapping[str, int]
#: Why a search ended.
Ended: TypeAlias = Literal["all tried", "time", "interrupted", "nothing runs"]

#: Configurations that share a run of the defaults: a quarter of the time goes to those.
_TOGETHER = 3
#: A score from which a value is tried in combination. Runs of a few seconds differ by as much on a
#: quiet machine; the final rounds sort that out.
_HINT = 1.02
#: Simulated with 18 values that do nothing: where speeds vary by 6%, 3% of searches report a gain.
FINAL_ROUNDS = 5
#: Runs of the shortest search that can report a gain.
LEAST_RUNS = 1 + _TOGETHER + 2 * FINAL_ROUNDS
#: Scores of single runs that are no further apart count as equal: the simpler one is a finalist.
_CLOSE = 0.05
#: If the first run of the defaults ends like this, there is nothing to compare with.
_HOPELESS = ("not installed", "invalid configuration", "failed")
_ASKS = 50  # of Optuna, which may repeat itself, for one round


@dataclass(frozen=True)
class Space:
    """The options of a search with their values, and what they stand at."""

    knobs: tuple[Knob, ...]
    start: Mapping[str, Any]
    #: `UsageError` for changes that cannot be together.
    check: Callable[[Changes], object] = lambda _changes: None
    fixed: tuple[str, ...] = ()  #: options that the user gave, and so are left alone

    def values(self, knob: Knob) -> tuple[Any, ...]:
        """The default and the values to try."""
        return tuple(dict.fromkeys((self.start.get(knob.key), *knob.values)))

    def places(self, moved: Places) -> dict[str, int]:
        """A place for every option: the default's unless it is moved."""
        return {knob.key: moved.get(knob.key, 0) for knob in self.knobs}

    def singles(self) -> list[tuple[str, Any, Places]]:
        """Every value of every option by itself."""
        return [
            (knob.key, value, self.places({knob.key: place}))
            for knob in self.knobs
            for place, value in enumerate(self.values(knob))
            if place
        ]

    def changes(self, places: Places) -> dict[str, Any]:
        """The configuration of these values, with what they bring along."""
        moved = [knob for knob in self.knobs if places[knob.key]]
        chosen = {knob.key: self.values(knob)[places[knob.key]] for knob in moved}
        chosen |= {k: v for knob in moved for k, v in knob.along.items() if k not in chosen}
        for knob in moved:
            if any(chosen.get(k, self.start.get(k)) != v for k, v in knob.needs.items()):
                del chosen[knob.key]  # it would do nothing
        return {k: v for k, v in chosen.items() if k not in self.start or v != self.start[k]}

    def problem(self, changes: Changes) -> str | None:
        """Why a configuration is refused, by the backend's own rules; None: it is not."""
        try:
            self.check(changes)
        except UsageError as error:
            return str(error)
        return None


def space_of(
    baseline: Baseline, cpus: int, given: Mapping[str, Any], *, reorder: bool = False
) -> Space:
    """The space of a backend.

    `given` has the user's own options by the keys of overrides: they stay as they are. `reorder`
    includes options that shuffle better or worse.
    """
    fixed: list[Knob] = []
    knobs: list[Knob] = []
    for knob in baseline.knobs(cpus):
        if knob.reorders and not reorder:
            continue
        clash = any(key in given and given[key] != value for key, value in knob.along.items())
        (fixed if knob.key in given or clash else knobs).append(knob)
    prefix = f"{baseline.name}."
    # headrace's own options are written `loader.`, as in its guide.
    written = "loader." if baseline.name == "headrace" else prefix
    start: dict[str, Any] = {knob.key: None for knob in knobs}
    start |= {f"{written}{key}": value for key, value in baseline.options.items()}
    start |= given

    def check(changes: Changes) -> None:
        both = {**given, **changes}.items()
        baseline.check({k.removeprefix(prefix): v for k, v in both if k.startswith(prefix)})

    return Space(tuple(knobs), start, check, tuple(knob.key for knob in fixed))


def overrides(changes: Changes) -> list[str]:
    """As they are typed."""
    return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in changes.items()]


def words(changes: Changes) -> str:
    """A configuration in one line.

    >>> words({"torch.workers": 4, "torch.pin": False, "a.mode": "full", "a.size": None})
    'torch.workers=4 torch.pin=false a.mode=full a.size=null'
    """
    return " ".join(overrides(changes)) or "defaults"


def fitting(left_s: float, costs: Sequence[float]) -> float:
    """How many runs end in the time that is left, by what the last ones took.

    One run may take as long as the longest of them, the others as long as most.
    """
    recent = costs[-5:]
    typical = max(statistics.median(recent), 1e-9)
    # A tenth more: a run that is begun should also end in time.
    return 1 + (left_s / 1.1 - max(recent)) / typical


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration that was run in the search, or refused without a run."""

    changes: Changes
    attempt: Attempt
    #: Its speed over that of the defaults in the same round; its speed where those do not run.
    score: float | None


@dataclass(frozen=True)
class Found:
    """The end of a search."""

    ended: Ended
    tried: tuple[Tried, ...]
    start: Attempt | None  #: the first run of the defaults
    finalist: Changes  #: what looked fastest; empty: nothing looked faster than the defaults
    final: tuple[Row, ...]  #: the defaults and the finalist, run again in turns
    runs: int  #: in all; some may be remembered from an earlier search
    keep: float  #: the least ratio that counts as a gain
    rounds: int  #: in which the finalist must be faster

    @property
    def contrast(self) -> Contrast:
        """The finalist against the defaults, as they were run again."""
        return contrast(self.final[1], self.final[0]) if self.final else Contrast()

    @property
    def proved(self) -> bool:
        """Whether the finalist was faster when both were run again, or runs and they do not."""
        if not self.final:
            return False
        base, row = self.final
        whole = row.complete and len(row.attempts) == self.rounds
        faster = self.contrast.verdict == "faster" and (self.contrast.ratio or 0.0) >= self.keep
        return whole and (faster or not base.complete)

    @property
    def unproved(self) -> bool:
        """Whether something looks faster, but was not run again often enough to tell."""
        if self.ended not in ("time", "interrupted") or not self.finalist:
            return False
        if not self.final:
            return True
        row, low = self.final[1], self.contrast.low
        return row.complete and len(row.attempts) < self.rounds and (low is None or low > 1)

    @property
    def winner(self) -> Changes:
        """What to take: the finalist, unless it was disproved; empty: the defaults."""
        return self.finalist if self.proved or self.unproved else {}


class _Over(Exception):
    """The search ends, for the reason that it has as its argument."""


@dataclass
class Search:
    """A search for the fastest configuration in the time there is."""

    space: Space
    #: Runs a configuration in a round with a name, in at most so many seconds: always an attempt.
    #: "interrupted" ends the search; "skipped" says that the time was too short.
    evaluate: Callable[[Changes, str, float], Attempt]
    known: Callable[[Changes, str], bool]  #: whether `evaluate` remembers that run
    seconds: float
    sample: bool = True  #: whether to try combinations after single options
    keep: float = 1.03  #: the least gain that is worth an option to carry
    seed: int = 0
    expected_s: float = 0.0  #: what a run takes, before one has been made
    clock: Callable[[], float] = monotonic
    _tried: dict[str, tuple[Places, Tried]] = field(default_factory=dict)  # by `words`
    _bad: list[set[tuple[str, int]]] = field(default_factory=list)  # values that failed together
    _combined: set[str] = field(default_factory=set)  # combinations that were queued
    _costs: list[float] = field(default_factory=list)
    _disproved: set[str] = field(default_factory=set)
    _proving: bool = False
    _finalist: Changes = field(default_factory=dict)
    _final: tuple[list[Attempt], ...] = ()  # of the defaults and of the finalist
    _numbers: dict[str, int] = field(default_factory=dict)  # of the next round of a name
    _start: Attempt | None = None
    _runs: int = 0

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds
        self._queue = deque(places for _, _, places in self.space.singles())
        self._sampler = _Sampler(self.space, self.seed)

    def run(self, progress: Callable[[Found], object] = lambda _found: None) -> Found:
        """Search and prove; `progress` is told after each round what was found so far.

        Where the proof fails and time is left, the search continues.
        """
        ended: Ended = "all tried"
        more = True
        try:
            while more:
                ended = self._search(progress)
                while self._final_round():
                    progress(self.found("time"))
                more = self._disprove()
        except _Over as over:
            ended = over.args[0]
        except KeyboardInterrupt:
            ended = "interrupted"
        return self.found(ended)

    def _search(self, progress: Callable[[Found], object]) -> Ended:
        """Rounds of the search until it is time for the proof, or nothing new is left to try."""
        try:
            while self._search_round():
                progress(self.found("time"))
        except _Over as over:
            if over.args[0] != "time":
                raise
            return "time"
        return "all tried"

    def found(self, ended: Ended) -> Found:
        """What is known now."""
        tried = tuple(tried for _, tried in self._tried.values())
        finalist = self._finalist or self._best()
        rows: tuple[Row, ...] = ()
        if any(self._final):
            labels = ("defaults", words(finalist))
            pairs = zip(labels, self._final, strict=True)
            rows = tuple(Row(Trial(label), tuple(attempts)) for label, attempts in pairs)
        return Found(ended, tried, self._start, finalist, rows, self._runs, self.keep, self._needed)

    @property
    def _needed(self) -> int:
        """Final rounds of a proof: one more for each that failed, as more tries find more luck."""
        return FINAL_ROUNDS + len(self._disproved)

    @property
    def _alone(self) -> bool:
        """Whether the defaults do not run here, so that whatever runs is better."""
        return self._start is not None and not self._start.complete

    # -- searching --------------------------------------------------------------------------------

    def _search_round(self) -> bool:
        """Run the defaults and a few new configurations; False: there is nothing new to try."""
        places = self._next()
        if not places:
            return False
        changes: list[Changes] = [self.space.changes(each) for each in places]
        # As long as nothing looks better, or is proved already, there is nothing to keep time for.
        best = self._best()
        proved = not best or self.known({}, f"{_final_name(best)} 1")
        reserve = 0 if proved else 2 * self._needed
        alone = self._alone
        try:
            attempts = self._round(changes if alone else [{}, *changes], "search", reserve)
        except _Over:
            self._queue.extendleft(reversed(places))  # for when the search continues
            raise
        base = None if alone else _rate(attempts.pop(0))
        if self._alone:
            base = 1.0  # the score is the speed itself
        for each, changed, attempt in zip(places, changes, attempts, strict=True):
            rate = _rate(attempt)
            self._learn(each, Tried(changed, attempt, rate / base if rate and base else None))
            if rate is None and base:  # the defaults ran, so it is the change that does not
                self._bad.append({item for item in each.items() if item[1]})
        self._combine()
        return True

    def _next(self) -> list[Places]:
        """Configurations for a round that are new and allowed."""
        found: dict[str, Places] = {}
        asks = 0
        while len(found) < _TOGETHER and (self._queue or (self.sample and asks < _ASKS)):
            asks += not self._queue
            places = self._queue.popleft() if self._queue else self._sampler.ask()
            changes = self.space.changes(places)
            name = words(changes)
            if not changes or name in found or name in self._tried:
                continue
            problem = self.space.problem(changes)
            if problem is not None:
                self._learn(places, Tried(changes, Attempt("invalid configuration", problem), None))
            elif not any(bad <= places.items() for bad in self._bad):
                found[name] = places
        return list(found.values())

    def _learn(self, places: Places, tried: Tried) -> None:
        self._tried[words(tried.changes)] = places, tried
        self._sampler.tell(places, tried.score or 0.0)

    def _combine(self) -> None:
        """Queue what looked faster together, and the best combination without each of its parts."""
        if not self.sample or self._alone:
            return
        good = [
            (tried.score, {key: place for key, place in places.items() if place})
            for places, tried in self._tried.values()
            if tried.score is not None and tried.score >= _HINT
        ]
        good.sort(key=lambda each: -each[0])
        together: dict[str, int] = {}  # of each option the best value by itself
        for _, moved in good:
            if len(moved) == 1:
                together = {**moved, **together}
        wanted = [together] if len(together) > 1 else []
        if good and len(best := good[0][1]) > 1:
            wanted += [{key: best[key] for key in best if key != left} for left in best]
        for moved in reversed(wanted):
            places = self.space.places(moved)
            name = words(self.space.changes(places))
            if name not in self._combined | self._tried.keys():
                self._combined.add(name)
                self._queue.appendleft(places)

    def _best(self) -> Changes:
        """The simplest of what looked about as fast as the fastest; empty: nothing did."""
        scored = [
            (tried.score, tried.changes)
            for name, (_, tried) in self._tried.items()
            if name not in self._disproved
            and tried.score is not None
            and (self._alone or tried.score >= _HINT)
        ]
        scored.sort(key=lambda each: -each[0])
        close = [changes for score, changes in scored if score >= (1 - _CLOSE) * scored[0][0]]
        return min(close, key=len, default={})

    # -- proving ----------------------------------------------------------------------------------

    def _final_round(self) -> bool:
        """The finalist and the defaults in turns; False: it is out, or has run often enough."""
        if not self._proving:
            best = self._best()
            if not best:
                return False
            self._proving, self._finalist, self._final = True, best, ([], [])
        base, mine = self._final
        pairs = zip(map(_rate, mine), map(_rate, base), strict=False)
        beaten = any((a or 0.0) <= (b or 0.0) for a, b in pairs)
        if beaten or not all(a.complete for a in mine) or len(mine) == self._needed:
            return False
        both: list[tuple[Changes, list[Attempt]]] = [(self._finalist, mine)]
        if all(a.complete for a in base):
            both.insert(len(mine) % 2, ({}, base))
        name = _final_name(self._finalist)
        attempts = self._round([changes for changes, _ in both], name, 0)
        for (_, mine), attempt in zip(both, attempts, strict=True):
            mine.append(attempt)
        return True

    def _disprove(self) -> bool:
        """Strike out a finalist that was not proved; whether there was one."""
        if not self._proving or self.found("time").proved:
            return False
        self._disproved.add(words(self._finalist))
        self._proving = False
        return True

    # -- running ----------------------------------------------------------------------------------

    def _round(self, configurations: Sequence[Changes], name: str, reserve: int) -> list[Attempt]:
        """Runs that are compared with each other: all of them now, or all remembered.

        A round that was cut off is made again as a whole, since the machine may be at another speed
        by then. It is not begun unless it fits the time, with `reserve` more runs.
        """
        for number in count(self._numbers.get(name, 1)):
            title = f"{name} {number}"
            known = [self.known(changes, title) for changes in configurations]
            if all(known) or not any(known):
                break
        if not all(known) and not self._fits(len(known) + reserve):
            raise _Over("time")
        self._numbers[name] = number + 1
        return [self._run(changes, title) for changes in configurations]

    def _fits(self, runs: int) -> bool:
        left = self._end - self.clock()
        return fitting(left, self._costs or [self.expected_s]) >= runs

    def _run(self, changes: Changes, title: str) -> Attempt:
        begun = self.clock()
        attempt = self.evaluate(changes, title, self._end - begun)
        if attempt.status in ("interrupted", "skipped"):
            raise _Over("interrupted" if attempt.status == "interrupted" else "time")
        self._runs += 1
        if attempt.complete:
            # A remembered run took no time now, but says how long the next one will take.
            self._costs.append(max(self.clock() - begun, attempt.wall_s or 0.0))
        if self._start is None:  # the first run of all is that of the defaults
            self._start = attempt
            if attempt.status in _HOPELESS:
                raise _Over("nothing runs")
        return attempt


def _final_name(changes: Changes) -> str:
    return f"final of {words(changes)}"


def _rate(attempt: Attempt) -> float | None:
    return attempt.samples_per_s if attempt.complete else None


class _Sampler:
    """Optuna's tree-structured Parzen estimator over all options."""

    def __init__(self, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._trial = optuna.trial
        self._axes: dict[str, Any] = {
            knob.key: optuna.distributions.CategoricalDistribution(range(len(space.values(knob))))
            for knob in space.knobs
        }
        with warnings.catch_warnings():
            # Multivariate, which Optuna calls experimental: single options say nothing about what
            # two of them do together.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self.tell(space.places({}), 1.0)

    def tell(self, places: Places, score: float) -> None:
        """What became of a configuration; 0: it failed."""
        self._study.add_trial(
            self._trial.create_trial(params=dict(places), distributions=self._axes, value=score)
        )

    def ask(self) -> dict[str, int]:
        """The next one; what becomes of it is told as a trial of its own."""
        trial = self._study.ask(self._axes)
        self._study.tell(trial, state=self._trial.TrialState.FAIL)
        return dict(trial.params)
