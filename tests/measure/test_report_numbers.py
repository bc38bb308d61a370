"""The numbers of reports, on data made by hand."""

import json
import math

import numpy as np
import pytest

from headrace.measure.columns import Batches, finite, finite_column
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report import write_run_report
from headrace.measure.report.figures import (
    _bands,
    _quantile_curve,
    _rates,
    _reduced,
    _rolling_shares,
)
from headrace.measure.report.slow import by_dominant, clumping, slowest, switch_stay, switches
from headrace.measure.report.tables import (
    COLUMNS,
    Table,
    dominant_table,
    mixture_summary,
    run_tables,
    slowest_table,
    summary_columns,
    switch_table,
    terminal_tables,
)
from headrace.measure.results import read_run
from tests.measure.made_runs import batch_record, write_lines, write_made_run
from tests.measure.report_pages import HOSTILE, Page


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
    shares = _rolling_shares(counts, window)
    for row in range(20):
        start = row - window // 2
        around = counts[max(start, 0) : min(start + window, 20)].sum(axis=0)
        assert shares[row] == pytest.approx(around / around.sum())


def test_a_stretch_without_samples_has_no_shares():
    assert _rolling_shares(np.zeros((4, 2)), 2).tolist() == [[0, 0]] * 4


def test_throughput_steps_hold_all_samples():
    rng = np.random.default_rng(1)
    t_s = np.cumsum(rng.exponential(0.1, 1000))
    times, values = _rates(t_s, np.full(1000, 64.0), 150)
    assert len(times) <= 151
    assert (np.diff(np.concatenate([[0.0], times])) * values).sum() == pytest.approx(64_000)
    assert times[-1] == t_s[-1]


def test_a_stall_is_a_dip_in_the_throughput():
    t_s = np.arange(1.0, 101) / 10
    t_s[50:] += 20  # one batch takes 20 seconds
    times, values = _rates(t_s, np.ones(100), 150)
    assert values.min() < 0.25
    assert np.median(values) == pytest.approx(10)
    assert times[values.argmin()] > 20


def test_batches_received_in_one_instant_do_not_divide_by_zero():
    times, values = _rates(np.array([1.0, 1.0, 1.0, 2.0]), np.ones(4), 150)
    assert times.tolist() == [1.0, 2.0]
    assert values.tolist() == [1.0, 3.0]


def test_fewer_points_keep_the_peaks_and_the_order():
    y = np.sin(np.arange(100_000.0) / 3000)
    y[77_777], y[12_345] = 9, -9
    few_x, few_y = _reduced(np.arange(100_000.0), y, 600)
    assert len(few_x) <= 600
    assert (few_y.max(), few_y.min()) == (9, -9)
    assert (np.diff(few_x) > 0).all()
    x = np.array([0.0, 1.0, np.nan, 3.0])
    assert _reduced(x, np.array([1.0, np.nan, 1.0, 2.0]))[0].tolist() == [0.0, 3.0]


def test_the_distribution_is_that_of_the_values():
    values, parts = _quantile_curve(np.array([3.0, 1.0, np.nan, 2.0, 2.0]))
    assert values.tolist() == [1, 2, 2, 3]
    assert parts.tolist() == [0.25, 0.5, 0.75, 1.0]
    many = np.random.default_rng(0).exponential(1.0, 100_000)
    values, parts = _quantile_curve(many)
    assert len(values) <= 600
    assert values[-1] == many.max()
    for percent in (50, 90, 99):
        assert np.interp(percent / 100, parts, values) == pytest.approx(
            np.percentile(many, percent), rel=0.01
        )


def test_bands_of_several_runs_have_the_same_style_for_the_same_dataset():
    counts = np.array([[1.0, 5.0, 2.0]])
    assert _bands(["a", "b", "c"], counts, ["c", "x", "a"])[0] == [("c", 0), ("a", 2), ("b", 5)]


def test_one_more_dataset_than_bands_keeps_its_name():
    bands, columns = _bands([f"d{i}" for i in range(13)], np.ones((2, 13)))
    assert [name for name, _ in bands] == [f"d{i}" for i in range(13)]
    assert columns.shape == (2, 13)


def records(*rows, warmup=0):
    """Rows are (dominant dataset, batch time)."""
    clock = np.cumsum([dt for _, dt in rows]).tolist()
    return [
        batch_record(i, clock[i], dt, {name: 3, "z": 1} if name else {}, warmup=i < warmup)
        for i, (name, dt) in enumerate(rows)
    ]


def batches(*rows, warmup=0):
    return Batches.of(records(*rows, warmup=warmup))


def written(folder, rows):
    folder.mkdir()
    write_lines(folder / "batch_times.jsonl", rows)
    return folder


# ---- by dominant dataset


def test_batches_are_grouped_by_their_dominant_dataset_slowest_first():
    found = by_dominant(
        batches(("b", 9.0), ("a", 1.0), ("b", 4.0), ("a", 3.0), ("c", 2.5), warmup=1)
    )
    assert [(g.name, g.batches, g.mean_s, g.p50_s) for g in found] == [
        ("b", 1, 4.0, 4.0),  # the first was of the warm-up
        ("c", 1, 2.5, 2.5),
        ("a", 2, 2.0, 2.0),
    ]
    assert found[2].p90_s == pytest.approx(2.8)


def test_more_datasets_than_rows_are_added_up_in_one_that_says_how_many():
    rows = [(f"d{i:02}", 1.0 + i) for i in range(20)]
    found = by_dominant(batches(*rows))
    assert [group.name for group in found] == [f"d{i:02}" for i in range(19, 7, -1)] + ["other (8)"]
    assert (found[-1].batches, found[-1].mean_s) == (8, 4.5)
    assert sum(group.batches for group in found) == 20
    assert len(by_dominant(batches(*rows[:13]))) == 13  # one more keeps its name


def test_a_batch_without_a_time_or_a_dataset_is_in_no_group():
    rows = records(("a", 1.0), ("a", 2.0), (None, 3.0), ("b", 1.0))
    rows[1]["dt_s"], rows[3]["dt_s"] = None, -1
    assert [(group.name, group.batches) for group in by_dominant(Batches.of(rows))] == [("a", 1)]


def test_records_with_a_dataset_for_every_batch_are_grouped_in_no_time():
    found = by_dominant(batches(*((f"d{i}", 1.0) for i in range(20_000))))
    assert found[-1].name == "other (19,988)"


# ---- switch and stay


def test_a_switch_is_a_batch_whose_dominant_dataset_is_another_than_before():
    found = switch_stay(
        batches(("a", 50.0), ("a", 9.0), ("b", 3.0), ("b", 1.0), ("a", 5.0), ("a", 3.0), warmup=1)
    )
    assert (found.switch.batches, found.switch.mean_s) == (2, 4.0)
    assert (found.stay.batches, found.stay.mean_s) == (2, 2.0)  # none of the first: nothing before
    assert found.ratio == 2.0


def test_without_stays_there_is_no_ratio():
    found = switch_stay(batches(("a", 1.0), ("b", 1.0), ("a", 1.0)))
    assert (found.switch.batches, found.stay.batches, found.ratio) == (2, 0, None)
    assert found.stay.mean_s is None


def test_where_a_record_is_lost_or_names_no_dataset_nothing_is_said_of_a_switch():
    rows = records(("a", 1.0), ("b", 1.0), ("a", 1.0), (None, 1.0), ("a", 1.0), ("a", 1.0))
    switched, stayed = switches(Batches.of(rows[:1] + rows[2:]))  # 0 2 3 4 5
    assert switched.tolist() == [False] * 5
    assert stayed.tolist() == [False, False, False, False, True]


def test_times_of_a_backend_that_serves_blocks_show_what_a_switch_costs(tmp_path):
    rows = [("ab"[i // 10 % 2], 0.5 if i % 10 == 0 else 0.1) for i in range(200)]
    run = read_run(written(tmp_path / "blocks", records(*rows)))
    assert switch_table([run]).rows == (("blocks", "19", "500 ms", "180", "100 ms", "5"),)


# ---- the slowest


def test_the_slowest_batches_are_listed_with_the_gap_of_their_dataset():
    rows = [("a", 1.0), ("b", 8.0), ("a", 2.0), ("c", 7.0), ("b", 6.0), ("a", 3.0)]
    found = slowest(batches(*rows, warmup=1), most=4)
    assert [(b.idx, b.dt_s, b.dominant, b.gap) for b in found] == [
        (1, 8.0, "b", None),
        (3, 7.0, "c", None),
        (4, 6.0, "b", 3),
        (5, 3.0, "a", 3),
    ]
    assert [b.t_s for b in found] == [9.0, 18.0, 24.0, 27.0]
    assert found[0].fetch_s == pytest.approx(5.6)


def test_a_dataset_of_the_warm_up_is_not_seen_for_the_first_time():
    assert slowest(batches(("a", 1.0), ("a", 2.0), warmup=1))[0].gap == 1


def test_at_most_ten_are_listed_and_equal_ones_in_the_order_they_came():
    found = slowest(batches(*(("a", 1.0) for _ in range(30))))
    assert [batch.idx for batch in found] == list(range(10))


def test_what_a_record_does_not_say_is_a_dash(tmp_path):
    rows = [{"idx": i, "t_s": i + 1.0, "dt_s": 1.0, "dominant_dataset": None} for i in range(2)]
    run = read_run(written(tmp_path / "run", rows))
    assert slowest_table(run).rows[0] == ("0", "1.00 s", "1 s", "-", "-", "-")
    assert (dominant_table(run).rows, switch_table([run]).rows) == ((), ())


# ---- tables in the page and as text


def test_the_page_and_the_summary_of_a_run_have_all_three_tables(tmp_path):
    folder = write_made_run(tmp_path / "run")
    page = Page(write_run_report(folder))
    summary = (folder / "mixture_summary.txt").read_text("utf-8")
    for table in run_tables(read_run(folder)):
        assert table.title in page.words
        assert {cell for row in table.rows for cell in row} <= set(page.words)
        assert table.text() in summary
        assert ("aria-label", table.title) in page.attributes
    assert page.tags.count("table") == 4


def test_a_terminal_is_spared_tables_that_say_nothing(tmp_path):
    even = read_run(write_made_run(tmp_path / "even"))
    assert clumping(even.batches) == pytest.approx(1, abs=0.3)
    assert [table.title for table in terminal_tables([even])] == ["The ten slowest batches"]
    blocks = read_run(write_made_run(tmp_path / "blocks", sticky=0.9))
    assert clumping(blocks.batches) > 2
    assert [table.title for table in terminal_tables([blocks])] == [
        table.title for table in run_tables(blocks)
    ]
    assert terminal_tables([even, even]) == []
    (table,) = terminal_tables([even, blocks])
    assert [row[0] for row in table.rows] == ["blocks"]


def test_a_terminal_is_spared_columns_without_figures(tmp_path):
    alone = read_run(write_made_run(tmp_path / "a", simulated_step_ms=0, limit_ratio=None, limit=0))
    heads = [COLUMNS[number] for number in summary_columns([alone])]
    assert {"run", "samples/s", "p50", "verdict"} <= set(heads)
    assert not {"stall a step", "of decode limit"} & set(heads)
    stepping = read_run(write_made_run(tmp_path / "b", simulated_step_ms=20))
    assert summary_columns([alone, stepping]) == list(range(len(COLUMNS)))


def test_the_use_of_a_gpu_is_a_table_of_the_page_and_of_the_terminal(tmp_path):
    gpu = {"name": "NVIDIA H200", "utilization_percent": {"mean": 97.2, "p10": 93.0}}
    gpu |= {"memory_peak_bytes": 57.8e9, "memory_total_bytes": 150e9, "mfu": 0.314}
    folder = write_made_run(tmp_path / "run", gpu=gpu, program="train")
    row = ("run", "NVIDIA H200", "97%", "93%", "57.8 GB", "150 GB", "31.4%")
    (table,) = (each for each in terminal_tables([read_run(folder)]) if each.title == "GPU")
    assert table.rows == (row,)
    assert set(row) <= set(Page(write_run_report(folder)).words)
    for broken in ({"name": 3}, {"utilization_percent": [1]}, {"memory_peak_bytes": "x"}):
        write_run_report(write_made_run(tmp_path / "broken", gpu=broken))


def test_hostile_names_stay_text_in_every_table(tmp_path):
    folder = write_made_run(tmp_path / "run", HOSTILE, name="<script>run</script>\nforged: 1")
    page = Page(write_run_report(folder))
    assert "script" not in page.tags
    assert page.words.count(HOSTILE[0]) >= 2  # by dataset, and in the slowest
    for table in run_tables(read_run(folder)):
        lines = table.text().splitlines()
        assert len(lines) == len(table.text().split("\n")) - 1
        assert all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.startswith("forged")]


def test_columns_of_text_line_up_and_long_names_are_cut():
    rows = (("x" * 90, "1", "a"), ("y", "22", "b"))
    table = Table("T", "c", ("name", "n", "words"), rows, ("words",))
    heads, one, two = table.text().splitlines()[3:]
    assert len(one) == len(two) == 72 + 2 + 2 + 2 + 5 - 4
    assert (one[71], one[74:]) == ("…", " 1  a")
    assert (heads[:4], two[74:]) == ("name", "22  b")
    assert Table("Things", "there are none", ("thing",), ()).text() == "Things\nthere are none\n"


def test_figures_read_well():
    assert [seconds(v) for v in (0, 1e-7, 0.00123, 0.9999, 61.3)] == [
        "0 s", "0.1 µs", "1.23 ms", "1 s", "61.3 s",
    ]  # fmt: skip
    assert [amount(v) for v in (0, 1234.5, 99.96, 0.00012, 1e-9)] == [
        "0", "1,234", "100", "0.00012", "1e-09",
    ]  # fmt: skip
    assert [megabytes(v) for v in (None, 999.4, 1000)] == ["-", "999 MB", "1 GB"]
    assert share(1.0) == "100%"
