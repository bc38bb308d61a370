"""Where batch time goes: the tables of reports, on records made by hand."""

import numpy as np
import pytest

from headrace.measure.columns import Batches
from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.report.slow import by_dominant, slowest, switch_stay, switches
from headrace.measure.report.slow_tables import (
    dominant_table,
    run_tables,
    slowest_table,
    switch_table,
)
from headrace.measure.report.table import Table
from headrace.measure.runs import read_run
from tests.measure.made_runs import batch_record, write_lines, write_made_comparison, write_made_run
from tests.measure.report_pages import HOSTILE, Page


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


# ---- in the page, the summary and the terminal


def test_the_page_and_the_summary_of_a_run_have_all_three_tables(tmp_path):
    folder = write_made_run(tmp_path / "run")
    page = Page(write_run_report(folder).read_text("utf-8"))
    summary = (folder / "mixture_summary.txt").read_text("utf-8")
    for table in run_tables(read_run(folder)):
        assert table.title in page.words
        assert {cell for row in table.rows for cell in row} <= set(page.words)
        assert table.text() in summary
        assert ("aria-label", table.title) in page.attributes
    assert page.tags.count("table") == 4


def test_a_comparison_has_a_row_of_switch_and_stay_for_each_run(tmp_path):
    folder = write_made_comparison(tmp_path / "cmp", repeats=1)
    text = write_run_report(folder).read_text("utf-8")
    assert "Switch and stay" in text
    assert "slowest batches" not in text
    assert "Repeated runs" not in text  # one round: there is no spread to show
    copy = write_comparison([folder / "headrace_1"], tmp_path / "copy.html").read_text("utf-8")
    assert "The ten slowest batches" in copy


def test_hostile_names_stay_text_in_every_table(tmp_path):
    folder = write_made_run(tmp_path / "run", HOSTILE, name="<script>run</script>\nforged: 1")
    page = Page(write_run_report(folder).read_text("utf-8"))
    assert "script" not in page.tags
    assert page.words.count(HOSTILE[0]) >= 2  # by dataset, and in the slowest
    for table in run_tables(read_run(folder)):
        lines = table.text().splitlines()
        assert len(lines) == len(table.text().split("\n")) - 1
        assert all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.startswith("forged")]


def test_a_table_without_rows_says_why():
    empty = Table("Things", "there are none", ("thing", "size"), ())
    assert "Things: nothing to show, there are none." in empty.html()
    assert empty.text() == "Things\nthere are none\n"


def test_columns_of_text_line_up_and_long_names_are_cut():
    table = Table(
        "T", "c", ("name", "n", "words"), (("x" * 90, "1", "a"), ("y", "22", "b")), ("words",)
    )
    heads, one, two = table.text().splitlines()[3:]
    assert len(one) == len(two) == 72 + 2 + 2 + 2 + 5 - 4
    assert (one[71], one[74:]) == ("…", " 1  a")
    assert (heads[:4], two[74:]) == ("name", "22  b")
