"""The numbers of reports, on data made by hand."""

import json
import math

import numpy as np
import pytest

from headrace.measure.columns import Batches, finite, finite_column
from headrace.measure.report.mixture import mixture_summary
from headrace.measure.report.points import quantile_curve, rates, reduced, rolling_shares
from headrace.measure.runs import read_run
from tests.measure.made_runs import batch_record, write_lines


def made_batches(rows, warmup=0):
    return [
        batch_record(i, float(i + 1), 1.0, counts, warmup=i < warmup)
        for i, counts in enumerate(rows)
    ]


def test_the_summary_counts_right_on_data_made_by_hand(tmp_path):
    rows = [
        {"x": 9},  # warm-up: counts for nothing
        {"a": 3, "b": 1},
        {"a": 2, "b": 2, "c": 0},  # a tie: the record says which
        {"b": 4},
        {"b": 3, "a": 1},
        {"c": 4},
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    write_lines(folder / "batch_times.jsonl", made_batches(rows, warmup=1))
    mixture = {"a": {"asked": 0.5, "served": None}, "b": {"asked": 0.5, "served": 0.45}}
    (folder / "result.json").write_text(json.dumps({"name": "hand", "mixture": mixture}))
    lines = mixture_summary(read_run(folder)).splitlines()
    assert lines[:6] == [
        "run: hand",
        "measured_batches: 5",
        "measured_samples: 20",
        "datasets: 4",
        "unique_dominant_datasets: 3",
        "dominant_switch_rate: 0.5000",  # a a b b c: two of four
    ]
    assert lines[6:10] == [
        "top_datasets:",
        "  a: dominant in 2 (40.00%)",
        "  b: dominant in 2 (40.00%)",
        "  c: dominant in 1 (20.00%)",
    ]
    table = {line.split()[0]: line.split()[1:] for line in lines[11 : lines.index("", 11)]}
    assert table["a"] == ["50.000%", "30.000%", "-20.000%"]  # served as counted
    assert table["b"] == ["50.000%", "45.000%", "-5.000%"]  # served as the result states it
    assert table["c"] == ["-", "20.000%", "-"]


def test_records_without_a_dominant_dataset_get_the_one_with_most_samples():
    records = made_batches([{"a": 1, "b": 3}, {"a": 5}])
    for record in records:
        record["dominant_dataset"] = None
    assert Batches.of(records).dominant.tolist() == ["b", "a"]


def test_records_without_counts_count_for_their_dominant_dataset():
    batches = Batches.of([{"dominant_dataset": "a"}, {"dominant_dataset": "b"}, {}])
    assert batches.names == ("a", "b")
    assert batches.counts.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_hostile_records_with_many_names_do_not_make_a_huge_table():
    batches = Batches.of([{"dataset_counts": {f"n{i}": 1, "a": 7}} for i in range(3000)])
    assert batches.counts.shape == (3000, 512)
    assert batches.counts.sum() == 3000 * 8
    assert batches.names[0] == "a"


def test_the_fast_way_to_read_numbers_finds_the_same_as_the_plain_one():
    plain = [1, 2.5, -3, math.nan, math.inf, -math.inf, 1e300, 10**15, 10**16, 0]
    for values in (plain, [*plain, None], [*plain, 10**400], [*plain, "1", True, []], []):
        expected = [math.nan if (n := finite(v)) is None else n for v in values]
        np.testing.assert_array_equal(finite_column(values), expected)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 50])
def test_the_rolling_mean_is_the_mean_of_the_batches_around(window):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 9, (20, 3)).astype(float)
    shares = rolling_shares(counts, window)
    for row in range(20):
        start = row - window // 2
        around = counts[max(start, 0) : min(start + window, 20)].sum(axis=0)
        assert shares[row] == pytest.approx(around / around.sum())


def test_a_stretch_without_samples_has_no_shares():
    assert rolling_shares(np.zeros((4, 2)), 2).tolist() == [[0, 0]] * 4


def test_throughput_steps_hold_all_samples():
    rng = np.random.default_rng(1)
    t_s = np.cumsum(rng.exponential(0.1, 1000))
    times, values = rates(t_s, np.full(1000, 64.0))
    assert len(times) <= 151
    assert (np.diff(np.concatenate([[0.0], times])) * values).sum() == pytest.approx(64_000)
    assert times[-1] == t_s[-1]


def test_a_stall_is_a_dip_in_the_throughput():
    t_s = np.arange(1.0, 101) / 10
    t_s[50:] += 20  # one batch takes 20 seconds
    times, values = rates(t_s, np.ones(100))
    assert values.min() < 0.25
    assert np.median(values) == pytest.approx(10)
    assert times[values.argmin()] > 20


def test_batches_received_in_one_instant_do_not_divide_by_zero():
    times, values = rates(np.array([1.0, 1.0, 1.0, 2.0]), np.ones(4))
    assert times.tolist() == [1.0, 2.0]
    assert values.tolist() == [1.0, 3.0]


def test_fewer_points_keep_the_peaks_and_the_order():
    y = np.sin(np.arange(100_000.0) / 3000)
    y[77_777], y[12_345] = 9, -9
    few_x, few_y = reduced(np.arange(100_000.0), y, 600)
    assert len(few_x) <= 600
    assert (few_y.max(), few_y.min()) == (9, -9)
    assert (np.diff(few_x) > 0).all()
    x = np.array([0.0, 1.0, np.nan, 3.0])
    assert reduced(x, np.array([1.0, np.nan, 1.0, 2.0]))[0].tolist() == [0.0, 3.0]


def test_the_distribution_is_that_of_the_values():
    values, parts = quantile_curve(np.array([3.0, 1.0, np.nan, 2.0, 2.0]))
    assert values.tolist() == [1, 2, 2, 3]
    assert parts.tolist() == [0.25, 0.5, 0.75, 1.0]
    many = np.random.default_rng(0).exponential(1.0, 100_000)
    values, parts = quantile_curve(many)
    assert len(values) <= 600
    assert values[-1] == many.max()
    for percent in (50, 90, 99):
        assert np.interp(percent / 100, parts, values) == pytest.approx(
            np.percentile(many, percent), rel=0.01
        )
