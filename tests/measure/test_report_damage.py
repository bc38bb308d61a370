"""Reports of damaged runs: what is wrong is named, the rest is shown."""

import json
import math
import random

import pytest

from headrace.errors import DataError
from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.results import read_run
from tests.measure.made_runs import batch_record, write_lines, write_made_run
from tests.measure.report_pages import FIGURES, MIXTURES, Page, parsed, svg_files


def test_half_a_line_at_the_end_is_named_and_the_rest_is_shown(tmp_path):
    folder = write_made_run(tmp_path / "run", batches=50, warmup=10)
    for name in ("batch_times.jsonl", "memory.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text[: len(text) - 20])
    (folder / "result.json").unlink()
    run = read_run(folder)
    assert len(run.batches) == 49
    assert run.status == "incomplete"
    problems = " ".join(run.problems)
    assert "batch_times.jsonl ends in half a line" in problems
    assert "49 whole records" in problems
    assert "result.json is missing" in problems
    page = Page(write_run_report(folder))
    assert all(problem in page.text for problem in run.problems)
    assert page.figures == [name for name in (*FIGURES, *MIXTURES) if name != "stages"]


def test_a_killed_run_has_the_figures_that_follow_from_its_batches(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    times = [9.0, 0.1, 0.2, 0.3]
    records = [
        batch_record(i, sum(times[: i + 1]), dt, {"a": 10}, warmup=i == 0)
        for i, dt in enumerate(times)
    ]
    write_lines(folder / "batch_times.jsonl", records)
    numbers = read_run(folder).numbers
    assert numbers["samples_per_s"] == pytest.approx(30 / 0.6)
    assert numbers["batches_per_s"] == pytest.approx(5)
    assert numbers["p50_s"] == pytest.approx(0.2)
    assert numbers["max_s"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: (f / "result.json").write_text("{"),
        lambda f: (f / "result.json").write_text("[]"),
        lambda f: (f / "result.json").write_text("[" * 100_000),
        lambda f: (f / "result.json").write_bytes(b"\xff\xfe\x00"),
        lambda f: (f / "batch_times.jsonl").write_bytes(b"\x00" * 5000),
        lambda f: (f / "batch_times.jsonl").write_text('[1]\n"a"\n{}\n{"idx": {}}\n'),
        lambda f: (f / "memory.jsonl").write_text('{"t_s": "late"}\n{"t_s": 1}\n'),
        lambda f: (f / "memory.jsonl").unlink(),
        lambda f: (f / "batch_times.jsonl").unlink(),
        lambda f: (f / "config.yaml").write_bytes(b"\xff\x00"),
        lambda f: ((f / "log.txt").unlink(), (f / "log.txt").mkdir()),
    ],
)
def test_any_one_damaged_file_leaves_a_report_of_the_rest(tmp_path, spoil):
    folder = write_made_run(tmp_path / "run", batches=30, warmup=5)
    spoil(folder)
    assert len(Page(write_run_report(folder)).figures) >= 2
    for path in svg_files(folder):
        parsed(path.read_text("utf-8"))


def test_values_that_are_no_numbers_are_left_out_not_drawn(tmp_path):
    folder = write_made_run(
        tmp_path / "run", batches=30, samples_per_s=None, p50_s="fast", peak_rss_mb=math.nan,
        budget_mb=math.inf, limit_ratio=None, mixture={"a": {"asked": None}, "b": 3, "c": {}},
        stages={"read": {"busy_s": None, "waiting_s": math.nan}, "decode": None},
    )  # fmt: skip
    lines = (folder / "batch_times.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    odd = (None, math.nan, math.inf, "soon", 1e300, -1, 10**400, True, [], {})
    for record, value in zip(records, odd, strict=False):
        record.update(idx=value, t_s=value, dt_s=value, is_warmup=value, dominant_dataset=value)
        record["dataset_counts"] = {"a": value}
    write_lines(folder / "batch_times.jsonl", records)
    write_run_report(folder)
    for path in svg_files(folder):
        text = path.read_text("utf-8")
        parsed(text)
        assert "NaN" not in text
        assert "inf" not in text.replace("info", ""), path


def test_a_run_without_a_batch_says_so_and_still_writes_every_file(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("batch_times.jsonl", "memory.jsonl"):
        (folder / name).write_text("")
    assert Page(write_run_report(folder)).figures == []
    assert len(svg_files(folder)) == 7
    assert all("Nothing to show" in path.read_text("utf-8") for path in svg_files(folder))
    assert "measured_batches: 0" in (folder / "mixture_summary.txt").read_text()


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 12])
def test_the_shortest_runs_are_drawn(tmp_path, batches):
    folder = write_made_run(tmp_path / "run", batches=batches, warmup=0)
    assert len(Page(write_run_report(folder)).figures) == 7
    for path in svg_files(folder):
        parsed(path.read_text("utf-8"))
    assert read_run(folder).batches.idx.tolist() == list(range(batches))


def test_a_run_of_warm_up_only_shows_its_throughput(tmp_path):
    folder = write_made_run(tmp_path / "run", batches=6, warmup=6, first_s=0.1)
    figures = Page(write_run_report(folder)).figures
    assert "throughput" in figures
    assert "batch_times" not in figures


def test_batches_that_all_took_equally_long_or_no_time_are_drawn(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for dt in (0.0, 0.25):
        records = [batch_record(i, i * dt, dt, {"a": 4}) for i in range(16)]
        write_lines(folder / "batch_times.jsonl", records)
        write_run_report(folder)
        for path in svg_files(folder):
            parsed(path.read_text("utf-8"))


def test_a_folder_that_is_not_a_run_is_an_error_that_names_it(tmp_path):
    for write in (write_run_report, lambda folder: write_comparison([folder], tmp_path / "o.html")):
        with pytest.raises(DataError, match="none'") as caught:
            write(tmp_path / "none")
        assert "result.json" in caught.value.remedy
        with pytest.raises(DataError, match="batch_times.jsonl") as caught:
            write(tmp_path)
        assert "headrace bench" in caught.value.remedy
    with pytest.raises(DataError, match="no run"):
        write_comparison([], tmp_path / "out.html")
    (tmp_path / "result.json").write_text('{"comparison": {"a": {}}}')
    with pytest.raises(DataError, match="no run in"):
        write_run_report(tmp_path)


ODD_VALUES = (
    None, True, -1, 0, 1e308, math.nan, math.inf, 10**30, "", "x" * 500, "<b>", "\ud800", [], {},
    {"a": 1}, [[]], 1e-300, -5.5, 1e15,
)  # fmt: skip


def spoiled(value, rng):
    if rng.random() < 0.15:
        return rng.choice(ODD_VALUES)
    if isinstance(value, dict):
        keys = [key if rng.random() > 0.03 else rng.choice(["<k>", "", "\x00"]) for key in value]
        return dict(zip(keys, (spoiled(v, rng) for v in value.values()), strict=True))
    return value


@pytest.mark.parametrize("seed", range(16))
def test_a_report_of_anything_is_well_formed(tmp_path, seed):
    rng = random.Random(seed)
    folder = write_made_run(tmp_path / "run", batches=30, warmup=3)
    for name in ("result.json", "batch_times.jsonl", "memory.jsonl"):
        path = folder / name
        if rng.random() < 0.5:
            lines = path.read_text().splitlines()
            records = [spoiled(json.loads(line), rng) for line in lines]
            write_lines(path, records)
        else:
            data = bytearray(path.read_bytes())
            for _ in range(rng.randrange(16)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
    assert "script" not in Page(write_run_report(folder)).tags
    for path in svg_files(folder):
        text = path.read_text("utf-8")
        parsed(text)
        assert "nan" not in text.lower()


@pytest.mark.parametrize(
    "odd",
    [
        {"config": 3, "gpu": "none", "program": 5, "machine": {"slurm": 3, "date": 7}},
        {"config": {"job": {"image_size": [[1], {}], "mixture": {"sources": [3, {"name": {}}]}}}},
        {"config": {"job": [], "data": {"loader": 1}, "loader": {"image_size": {}}}},
        {"gpu": {"utilization_percent": 3, "memory_peak_bytes": {}, "mfu": "high", "name": []}},
    ],
)
def test_runs_that_say_odd_things_of_their_work_can_be_compared(tmp_path, odd):
    folders = [write_made_run(tmp_path / "a"), write_made_run(tmp_path / "b", **odd)]
    Page(write_comparison(folders, tmp_path / "c.html"))
