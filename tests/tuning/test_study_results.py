"""Decisions: the fastest row that kept the floor, and whether it differs at all."""

import pytest

from headrace.tuning.study.results import Row, contrast, decide, markdown_table
from headrace.tuning.study.trial import Attempt, Trial


def row(label, *rates):
    """A row with these samples/s; None is a round that was stopped."""
    attempts = [
        Attempt("floor reached", "low") if rate is None else Attempt("complete", samples_per_s=rate)
        for rate in rates
    ]
    return Row(Trial(label), tuple(attempts))


@pytest.mark.parametrize(
    ("rates", "verdict", "ratio"),
    [
        ((110, 112, 111), "faster", 1.10),
        ((90, 91, 92), "slower", 0.91),
        ((110, 95, 111), "no difference", 1.09),  # once it was slower
        ((101, 101.5, 102.5), "no difference", 1.01),  # the baseline itself reached that
        ((130, None, 111), "faster", 1.195),
    ],
)
def test_a_difference_counts_only_outside_the_noise(rates, verdict, ratio):
    found = contrast(row("x", *rates), row("base", 100, 100, 102))
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(ratio, abs=0.01)


def test_a_machine_that_drifts_is_no_difference_and_hides_none():
    base = row("base", 100, 80, 60)
    assert contrast(row("same", 99, 81, 59.5), base).verdict == "no difference"
    # Twice as fast in every round, whatever the machine did.
    assert contrast(row("twice", 200, 160, 120), base).verdict == "faster"


def test_one_round_decides_nothing():
    found = decide([row("base", 100), row("x", 150)])
    assert (found.best, found.contrast.verdict) == ("x", "one round")
    assert "1.50" in found.words


def test_the_best_row_that_kept_the_floor_is_taken():
    rows = [row("base", 100, 101), row("big", 300, None), row("good", 120, 121), row("bad", 50, 51)]
    found = decide(rows)
    assert (found.best, found.contrast.verdict) == ("good", "faster")
    assert "Take good (120 samples/s): 1.20 (1.20 to 1.20) of base in 2 rounds" in found.words


def test_rows_are_ranked_within_rounds():
    # The median of x is the higher one, because the machine was slow in two rounds of the baseline.
    base, x = row("base", 620, 1200, 640), row("x", 425, 1010, 680)
    assert x.rate > base.rate
    assert decide([base, x]).best == "base"


def test_noise_keeps_the_baseline():
    found = decide([row("base", 100, 104), row("x", 103, 102)])
    assert (found.best, found.contrast.verdict) == ("x", "no difference")
    assert "Keep the baseline" in found.words


def test_a_baseline_that_is_the_fastest_is_kept():
    found = decide([row("base", 100, 104), row("x", 50, 52)])
    assert found.best == "base"
    assert "Keep the baseline" in found.words


def test_without_a_baseline_the_best_is_named_and_not_compared():
    found = decide([row("base", None), row("x", 50, 52)])
    assert (found.best, found.contrast.verdict) == ("x", "not known")
    assert "floor reached" in found.words


def test_no_row_that_passed_is_said():
    found = decide([row("base", None)])
    assert found.best is None
    assert "base: floor reached" in found.words


def test_a_row_with_a_bad_round_has_its_status_and_the_figures_of_the_others():
    attempts = (
        Attempt("complete", samples_per_s=100.0, peak_anon_mb=5.0),
        Attempt("stalled", "no batch for 5 s", peak_anon_mb=9.0, notes=("a note",)),
    )
    found = Row(Trial("x"), attempts)
    assert found.status == "stalled"
    assert "1 of 2" in found.cause
    assert "no batch for 5 s" in found.cause
    assert (found.rate, found.rates) == (100.0, (100.0, None))
    assert found.figures["peak_anon_mb"] == 9.0  # of memory the worst
    assert found.notes == (found.cause, "a note")
    assert Row(Trial("y"), ()).status == "not run"


def test_cells_of_a_markdown_table_stay_cells():
    assert markdown_table(("a", ">b"), [("x|y\nz", "<p>")]) == [
        "| a | b |",
        "|---|---:|",
        "| x\\|y z | &lt;p> |",
    ]
