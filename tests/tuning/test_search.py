"""The search on made-up response surfaces: what it finds, leaves alone, proves and says."""

import random
from importlib.util import find_spec
from itertools import pairwise

import pytest

from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Knob
from headrace.tuning.search import Search, Space
from headrace.tuning.study.trial import Attempt
from headrace.tuning.tune import verdict

pytestmark = pytest.mark.skipif(not find_spec("optuna"), reason="optuna is not installed")

KNOBS = tuple(Knob(f"b.k{n}", (1, 2, 3)) for n in range(6))
SPACE = Space(KNOBS, {knob.key: 0 for knob in KNOBS})
DIED = Attempt("oom-killed", "out of memory")


class Surface:
    """Answers by a function of the options; every run takes ten seconds of a made-up clock.

    It remembers answers, as the ledger does, and may be interrupted after `left` of them.
    """

    def __init__(self, rate, *, noise=0.0, drift=0.0, seed=0, takes=10.0):
        self.rate, self.noise, self.drift, self.takes = rate, noise, drift, takes
        self.random = random.Random(seed)
        self.time = 0.0
        self.asked = []
        self.answers = {}
        self.left = -1

    def __call__(self, changes, name, left_s):
        key = (tuple(changes.items()), name)
        if key not in self.answers:
            if self.left == 0:
                return Attempt("interrupted", "interrupted (Ctrl-C)")
            self.left -= 1
            self.asked.append((dict(changes), name))
            self.answers[key] = self.answer(changes)
        return self.answers[key]

    def answer(self, changes):
        found = self.rate({knob.key: 0 for knob in KNOBS} | dict(changes))
        self.time += self.takes
        if isinstance(found, Attempt):
            return found
        found *= self.random.uniform(1 - self.noise, 1 + self.noise) + self.drift * self.time
        return Attempt("complete", samples_per_s=found, wall_s=self.takes)

    def known(self, changes, name):
        return (tuple(changes.items()), name) in self.answers

    def search(self, minutes=60.0, space=SPACE, *, sample=False, **more):
        search = Search(
            space, self, self.known, 60 * minutes, sample=sample, clock=lambda: self.time, **more
        )
        return search.run()


def two_good(o):
    return 100 * (1.2 if o["b.k1"] == 2 else 1) * (1 + 0.1 * o["b.k4"])


def one_good(o):
    return 100 * (1.2 if o["b.k0"] == 1 else 1)


def score(found, **changes):
    wanted = {f"b.{key}": value for key, value in changes.items()}
    return next(tried.score for tried in found.tried if tried.changes == wanted)


# -- searching -----------------------------------------------------------------------------------


def test_without_combinations_every_value_is_tried_and_the_best_is_proved():
    found = Surface(two_good).search()
    assert found.ended == "all tried"
    assert len(found.tried) == 18
    assert score(found, k1=2) == pytest.approx(1.2)
    assert found.winner == {"b.k4": 3}
    assert found.contrast.ratio == pytest.approx(1.3)


def test_what_looks_faster_is_combined():
    found = Surface(two_good, noise=0.005).search(15, sample=True)
    assert found.winner == {"b.k1": 2, "b.k4": 3}
    assert found.contrast.ratio == pytest.approx(1.2 * 1.3, rel=0.05)


def test_options_that_do_nothing_are_dropped_from_a_combination():
    # On a single look k2 seems to help: it is in the combination at first.
    surface = Surface(lambda o: two_good(o) * (1.04 if o["b.k2"] == 1 and not o["b.k1"] else 1))
    found = surface.search(30, sample=True)
    assert found.winner == {"b.k1": 2, "b.k4": 3}


def test_an_optimum_that_needs_two_changes_at_once_is_found_by_sampling():
    def rate(o):
        return 100 * (1.5 if o["b.k2"] == 1 and o["b.k5"] == 3 else 1)

    assert Surface(rate).search().winner == {}
    found = Surface(rate, noise=0.01).search(180, sample=True)
    assert found.winner.items() >= {"b.k2": 1, "b.k5": 3}.items()
    assert found.contrast.ratio == pytest.approx(1.5, rel=0.05)


def test_every_round_has_a_run_of_the_defaults():
    surface = Surface(lambda o: 100)
    surface.search()
    rounds = {}
    for changes, name in surface.asked:
        rounds.setdefault(name, []).append(changes)
    assert len(rounds) == 6
    assert all(runs[0] == {} and len(runs) == 4 for runs in rounds.values())


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_never_becomes_a_gain(seed):
    found = Surface(lambda o: 100, noise=0.06, seed=seed).search()
    assert not found.proved
    assert found.winner == {}


def test_a_gain_below_what_matters_is_not_kept():
    found = Surface(lambda o: 100 + 2.5 * (o["b.k2"] == 1)).search()
    assert (found.finalist, found.proved) == ({"b.k2": 1}, False)
    surface = Surface(lambda o: 100 * (1.04 if o["b.k0"] == 1 else 1))
    assert surface.search().winner == {"b.k0": 1}
    assert surface.search(keep=1.05).winner == {}


@pytest.mark.parametrize("drift", [0.0005, -0.0002])
def test_a_machine_that_drifts_neither_feigns_nor_hides_a_gain(drift):
    assert Surface(lambda o: 100, drift=drift).search().winner == {}
    surface = Surface(lambda o: 100 + 20 * (o["b.k3"] == 1), noise=0.01, drift=drift)
    assert surface.search().winner == {"b.k3": 1}


def test_values_that_failed_are_told_of_and_never_tried_again():
    def rate(o):
        return DIED if o["b.k0"] == 3 else one_good(o)

    surface = Surface(rate)
    found = surface.search(25, sample=True)
    assert found.winner == {"b.k0": 1}
    assert len([c for c, _ in surface.asked if c.get("b.k0") == 3]) == 1
    [dead] = [tried for tried in found.tried if tried.attempt is DIED]
    assert (dead.changes, dead.score) == ({"b.k0": 3}, None)


def test_what_the_backend_refuses_is_noted_without_a_run():
    def check(changes):
        if changes.get("b.k1") == 3:
            raise UsageError("k1 is 3, above k2")

    surface = Surface(one_good)
    found = surface.search(space=Space(KNOBS, SPACE.start, check))
    assert not [c for c, _ in surface.asked if c.get("b.k1") == 3]
    [refused] = [t for t in found.tried if t.changes == {"b.k1": 3}]
    assert refused.attempt.status == "invalid configuration"
    assert "k1 is 3" in refused.attempt.cause


def test_options_bring_others_along_and_need_others():
    knobs = (
        Knob("b.calls", (8,), along={"b.length": 8}),
        Knob("b.mode", ("python",)),
        Knob("b.threads", (4,), needs={"b.mode": "python"}),
    )
    space = Space(knobs, {"b.calls": 0, "b.length": 1, "b.mode": "choose", "b.threads": 1})

    def changes(**moved):
        return space.changes(space.places({f"b.{key}": place for key, place in moved.items()}))

    assert changes(calls=1) == {"b.length": 8, "b.calls": 8}
    assert changes(threads=1) == {}  # it would do nothing
    assert changes(threads=1, mode=1) == {"b.mode": "python", "b.threads": 4}


# -- time ----------------------------------------------------------------------------------------


def test_no_round_begins_that_would_not_fit_the_time_with_the_proof():
    surface = Surface(one_good)
    found = surface.search(5)
    assert found.ended == "time"
    assert surface.time <= 300
    assert found.proved
    assert len(found.tried) < 18


def test_what_there_is_no_time_to_prove_is_said_to_be_unproved():
    surface = Surface(one_good)
    found = surface.search(0.9)
    assert (found.ended, found.proved, found.final) == ("time", False, ())
    assert found.unproved
    assert found.winner == {"b.k0": 1}
    words = verdict(found, 0.9, own=False)
    assert "b.k0=1" in words
    assert "noise" in words


def test_the_search_continues_when_the_proof_fails_with_time_left():
    # k0 is lucky once; k3 is good.
    def rate(o):
        lucky = o["b.k0"] == 1 and len(surface.asked) < 4
        return 100 * (1.5 if lucky else 1) * (1.3 if o["b.k3"] == 2 else 1)

    surface = Surface(rate)
    found = surface.search(4.5)
    assert found.winner == {"b.k3": 2}
    assert surface.time <= 270
    assert [name for _, name in surface.asked].index("search 4") > 12  # after a proof that failed
    made = len(surface.asked)
    assert surface.search(4.5).winner == {"b.k3": 2}
    assert len(surface.asked) >= made
    assert all(surface.asked.count(each) == 1 for each in surface.asked)


def test_without_time_for_anything_nothing_runs():
    found = Surface(lambda o: 100).search(0.5, expected_s=10)
    assert (found.ended, found.runs, found.winner) == ("time", 0, {})


# -- interruption and resuming -------------------------------------------------------------------


@pytest.mark.parametrize(("after", "best"), [(0, {}), (10, {"b.k0": 1}), (28, {"b.k0": 1})])
def test_an_interrupted_search_keeps_the_best_so_far(after, best):
    surface = Surface(one_good)
    surface.left = after
    found = surface.search()
    assert (found.ended, found.winner) == ("interrupted", best)
    assert not found.proved
    assert found.unproved == bool(best)


def test_a_search_resumes_without_repeating_a_run():
    def rate(o):
        return 100 * (1.2 if o["b.k0"] == 1 else 1) * (1.3 if o["b.k4"] == o["b.k5"] == 2 else 1)

    surface = Surface(rate, noise=0.01)
    first = surface.search(6, sample=True)
    assert first.ended == "time"
    made = len(surface.answers)
    # Without any time, what is known is found again, to the proof.
    again = surface.search(0.001, sample=True)
    assert (again.tried, again.final) == (first.tried, first.final)
    assert len(surface.answers) == made
    longer = surface.search(40, sample=True)
    assert longer.tried[: len(first.tried)] == first.tried
    assert len(longer.tried) > len(first.tried)
    assert all(a != b for a, b in pairwise(sorted(map(repr, surface.asked))))


def test_a_round_that_was_cut_off_is_made_again_on_the_machine_as_it_is_then():
    # Twice as fast after the interruption: half a round of each would show a gain.
    surface = Surface(lambda o: 100 if len(surface.asked) <= 6 else 200)
    surface.left = 6  # in the middle of the second round
    assert surface.search().ended == "interrupted"
    surface.left = -1
    found = surface.search()
    assert (found.ended, found.winner) == ("all tried", {})
    assert {tried.score for tried in found.tried} == {1.0}


# -- defaults that do not run --------------------------------------------------------------------


def test_if_the_defaults_cannot_run_whatever_runs_is_better():
    def rate(o):
        return 80 if o["b.k1"] == 2 else Attempt("floor reached", "4.9 GiB left")

    found = Surface(rate).search()
    assert (found.start.status, found.winner) == ("floor reached", {"b.k1": 2})
    assert "floor reached" in verdict(found, 15, own=False)
    nothing = Surface(lambda o: Attempt("floor reached", "4.9 GiB left")).search()
    assert (nothing.start.status, nothing.winner) == ("floor reached", {})


def test_defaults_that_are_broken_end_the_search_at_once():
    surface = Surface(lambda o: Attempt("failed", "no catalog"))
    found = surface.search()
    assert (found.ended, len(surface.asked)) == ("nothing runs", 1)
    assert "no catalog" in verdict(found, 15, own=False)


def test_a_best_that_dies_when_it_runs_again_is_not_the_winner():
    surface = Surface(one_good)
    answer = surface.answer
    surface.answer = lambda changes: (
        DIED if changes and len(surface.asked) > 24 else answer(changes)
    )
    found = surface.search()
    assert (found.finalist, found.winner) == ({"b.k0": 1}, {})
    assert "oom-killed" in verdict(found, 15, own=False)


# -- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "minutes", "own", "said"),
    [
        (one_good, 60, False, ["b.k0=1 is 20% faster", "1.20 (1.20 to 1.20)", "5 rounds"]),
        (one_good, 60, True, ["b.k0=1 is 20% faster", "report", "log.md"]),
        (one_good, 5, False, ["b.k0=1", "5 minutes", "same command"]),
        (lambda o: 100, 60, False, ["Keep the defaults"]),
        (lambda o: 100, 60, True, ["Nothing to tune"]),
        (lambda o: 100 + 2.5 * (o["b.k2"] == 1), 60, False, ["Keep the defaults", "b.k2=1"]),
        (lambda o: 100, 0.1, False, ["Nothing was tried", "0.1 minutes"]),
    ],
)
def test_the_verdict_says_what_to_take_and_why(rate, minutes, own, said):
    found = Surface(rate).search(minutes, expected_s=10)
    words = verdict(found, minutes, own=own)
    assert all(each in words for each in said), words


def test_an_interrupted_search_says_that_nothing_is_proved_and_how_to_resume():
    surface = Surface(one_good)
    surface.left = 10
    words = verdict(surface.search(), 15, own=False)
    assert "b.k0=1" in words
    assert "noise" in words
    assert "same command" in words
