"""What a search says: reasons, tables, and the files that it writes."""

import pytest

from headrace.tuning.decision import Contrast
from headrace.tuning.search.asked import Asked
from headrace.tuning.search.found import CUT, Found, Step, Tried
from headrace.tuning.search.reason import cells, reason
from headrace.tuning.search.write import log, tuned
from headrace.tuning.study import read_study

ASKED = Asked("oxe29", ("root=/my data",), "tfdata")
ONE = Contrast("one round", 1.0, 1.0, 1.0, 1)
GAIN = Contrast("faster", 1.14, 1.12, 1.16, 3)
SLOW = Contrast("one round", 0.7, 0.7, 0.7, 1)
NONE = Contrast("not known")
MACHINE = {
    "cpu": "x",
    "cores_allowed": 2,
    "cores": 2,
    "memory_bytes": 1 << 34,
    "system": "Linux",
}


def tried(key, value, compared=ONE, *, status="pass", cause=None, kept=False, note=""):
    change = {f"tfdata.{key}": value}
    return Tried(change, change, status, cause, compared, 100.0, kept, note)


def step(*all_tried, stage="ladder"):
    key = next(iter(all_tried[0].difference))
    return Step(stage, key, all_tried, 100.0)


def found(*steps, best=None, proof=NONE, ended="all tried", **more):
    status = "pass" if proof.rounds else "not run"
    values = {"start_status": "pass", "proof_status": status, **more}
    return Found(best or {}, proof, (100.0, 114.0), steps, ended, None, 40, **values)


KEPT = step(tried("a", False, GAIN, kept=True))
CALM = step(tried("b", -1), tried("b", 4))
SLOWER = step(tried("c", 2, SLOW))
DEAD = step(tried("d", 9, NONE, status="oom-killed", cause="killed"))
REFUSED = step(tried("e", 9, NONE, status="invalid configuration", cause="e > f", note="not run"))
BEST = {"tfdata.a": False}


def test_a_proved_winner_is_given_with_its_gain_and_what_else_was_tried():
    words = reason(found(KEPT, CALM, CALM, best=BEST, proof=GAIN), ASKED)
    assert words == (
        "tfdata.a=false gave +14% over the defaults (1.14 (1.12 to 1.16) in 3 rounds in turns). "
        "The other 2 options were inside the noise."
    )


def test_slower_and_failed_options_are_counted_and_failures_named():
    words = reason(found(KEPT, CALM, SLOWER, DEAD, best=BEST, proof=GAIN), ASKED)
    assert words.endswith(
        "Of the other 3 options 1 was inside the noise, 1 was slower and 1 was not able to run; "
        "these did not run: tfdata.d=9 (oom-killed)."
    )


def test_several_changes_are_each_given_their_part():
    second = step(tried("b", 4, Contrast("faster", 1.05, 1.04, 1.06, 3), kept=True))
    words = reason(found(KEPT, second, best={**BEST, "tfdata.b": 4}, proof=GAIN), ASKED)
    assert words.startswith("tfdata.a=false tfdata.b=4 gave +14% over the defaults")
    assert words.endswith(
        "When they were tried, tfdata.a=false gave +14%, then tfdata.b=4 gave +5%."
    )


def test_what_looked_better_when_the_time_was_over_is_named():
    hopeful = Contrast("one round", 1.2, 1.2, 1.2, 1)
    both = step(tried("b", 4, hopeful, note=CUT), tried("b", 8, hopeful))
    assert cells(both)[3] == f"4: {CUT}; 8: not run again"
    words = reason(found(CALM, both, ended="time"), ASKED)
    assert "The option was inside the noise." in words
    assert "tfdata.b=4 looked better (1.20), but there was no time to run it again." in words
    assert words.endswith("run the same command again to go on.")


@pytest.mark.parametrize(
    ("what", "begins"),
    [
        (found(CALM), "Keep the defaults: nothing that was tried is faster beyond the noise."),
        (
            found(KEPT, best=BEST, proof=Contrast("no difference", 1.01, 0.97, 1.03, 3)),
            "Keep the defaults: tfdata.a=false looked faster in the search, but run again in turns "
            "it was 1.01 (0.97 to 1.03) of them, which is inside the noise.",
        ),
        (
            found(KEPT, best=BEST, ended="interrupted"),
            "tfdata.a=false is the best so far, but it was not run again against the defaults: the "
            "search was interrupted",
        ),
        (
            found(KEPT, best=BEST, ended="time"),
            "tfdata.a=false is the best so far, but it was not run again against the defaults: 15 "
            "minutes were not enough",
        ),
        (
            found(KEPT, best=BEST, proof_status="floor reached"),
            "Keep the defaults: tfdata.a=false looked faster, but did not pass when it was run "
            "again (floor reached).",
        ),
        (
            found(KEPT, best=BEST, start_status="floor reached", proof_status="pass"),
            "tfdata.a=false runs here; the defaults do not (floor reached).",
        ),
        (
            found(ended="nothing runs", cause="failed: no catalog"),
            "Nothing could be measured: the defaults themselves did not run (failed: no catalog).",
        ),
    ],
)
def test_every_ending_has_its_words(what, begins):
    assert reason(what, ASKED).startswith(begins)


def test_headrace_has_nothing_to_tune_and_a_surprise_is_to_be_reported():
    own = Asked("oxe29", (), "headrace")
    calm = Step(
        "ladder",
        "loader.workers",
        (tried("t", 4, Contrast("one round", 1.01, 1.01, 1.01, 1)),),
        1.0,
    )
    assert reason(found(calm), own).startswith(
        "Nothing to tune: the best of what was tried, tfdata.t=4, was at 1.01 of the defaults"
    )
    surprise = reason(found(KEPT, best=BEST, proof=GAIN), own)
    assert "gave +14%" in surprise
    assert "Please report it" in surprise


def test_a_row_of_the_ladder_has_its_values_effects_and_result():
    assert cells(KEPT) == ("tfdata.a", "false", "1.14 (1.12 to 1.16)", "kept")
    assert cells(CALM) == ("tfdata.b", "-1, 4", "1.00, 1.00", "no better")
    assert cells(step(tried("c", 1), tried("c", 2, SLOW)))[3] == "1: no better; 2: slower"
    assert cells(DEAD)[2:] == ("-", "oom-killed")
    assert cells(step(tried("c", 1), tried("c", 2, GAIN, kept=True)))[3] == "kept 2"


def test_the_winner_is_written_as_a_line_to_paste_and_as_a_study(tmp_path):
    result = found(KEPT, DEAD, REFUSED, best=BEST, proof=GAIN)
    assert ASKED.command(result.winner) == (
        "headrace bench oxe29 'root=/my data' --backend tfdata tfdata.a=false"
    )
    (tmp_path / "tuned.yaml").write_text(tuned(result, ASKED))
    study = read_study(tmp_path / "tuned.yaml")
    assert [(e.label, e.overrides) for e in study.entries] == [
        ("defaults", ()),
        ("tuned", ("tfdata.a=false",)),
    ]
    assert (study.backend, study.guard.min_available) == ("tfdata", 5 << 30)
    page = log(result, ASKED, MACHINE)
    assert "| tfdata.a | false | 1.14 (1.12 to 1.16) | kept |" in page
    assert "`tfdata.d=9`: oom-killed: killed" in page
    assert "e > f" in page
    assert "## Decision" in page


def test_without_a_winner_the_defaults_are_written(tmp_path):
    (tmp_path / "tuned.yaml").write_text(tuned(found(CALM), ASKED))
    assert [e.label for e in read_study(tmp_path / "tuned.yaml").entries] == ["defaults"]
