"""The benchmark: every figure is there, and every way a run can end is a row."""

import dataclasses
import gzip
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.measure import bench as bench_module
from headrace.measure.bench import bench, compare, mean_limit
from headrace.measure.job import BenchSettings, Job, jobs_of
from headrace.measure.machine import (
    descendants,
)
from headrace.testing import synthesize

#: What `result.json` must have.
FIGURES = [
    "samples_per_s",
    "batches_per_s",
    "mean_s",
    "p50_s",
    "p90_s",
    "p99_s",
    "max_s",
    "first_batch_s",
    "close_s",
    "setup_s",
    "stall_s_per_step",
    "peak_rss_mb",
    "peak_anon_mb",
    "budget_mb",
    "decode_limit_samples_per_s",
    "limit_ratio",
    "bytes_read_per_sample",
    "cpu_s_per_sample",
    "mixture",
    "stages",
    "config",
    "machine",
]
RECORD = [
    "idx",
    "dt_s",
    "fetch_dt_s",
    "materialize_dt_s",
    "is_warmup",
    "dominant_dataset",
    "dataset_counts",
    "dominant_gap_batches",
]

SHORT = BenchSettings(seconds=None, steps=12, warmup=2, warmup_seconds=0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    synthesize(root, only=["bridge", "kuka"], episodes=3, seed=1, _max_steps=9)
    return root


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch):
    """The limits are not what is tested here."""
    monkeypatch.setattr(bench_module, "_LIMIT_SECONDS", 0.5)


@pytest.fixture
def job(data):
    sources = [
        {"name": "bridge", "weight": 0.25, "offset": 2},
        {"name": "kuka", "weight": 0.75, "offset": 2},
    ]
    mixture = hr.Mixture.from_dict({"root": str(data), "sources": sources})
    loader = hr.LoaderOptions(batch_size=8, image_size=32, workers=1)
    return Job(mixture, loader, {"keep_free": 0})


def records_of(folder):
    return [json.loads(line) for line in (folder / "batch_times.jsonl").read_text().splitlines()]


def test_a_run_has_every_figure_and_every_file(job, tmp_path):
    folder, result = bench(job, settings=SHORT, runs=tmp_path, name="a b/c")
    assert result["status"] == "complete"
    assert [key for key in FIGURES if result.get(key) in (None, {}, [])] == []
    assert json.loads((folder / "result.json").read_text()) == result
    assert folder.name.endswith("_a_b_c")
    records = records_of(folder)
    assert [r["is_warmup"] for r in records] == [True] * 2 + [False] * 12
    assert [r["idx"] for r in records] == list(range(14))
    assert all(set(RECORD) <= set(r) for r in records)
    assert result["batches"] == 12
    assert result["samples"] == 96
    assert result["samples_per_s"] == pytest.approx(96 / result["elapsed_s"])
    for name in ("config.yaml", "machine.json", "memory.jsonl", "log.txt", "report.html"):
        assert (folder / name).stat().st_size > 0 or name == "log.txt", name
    assert {"read", "decode", "resize", "fields"} <= set(result["stages"])


def test_a_profile_is_a_trace_of_the_loop_and_of_every_worker(job, tmp_path):
    folder, result = bench(
        job, settings=SHORT, runs=tmp_path, limit=False, draw=False, profile=True
    )
    path = folder / result["trace"]
    # Where TensorBoard looks for profiles; the name is for its plugin for torch.
    assert path.parent.relative_to(folder).parts == ("plugins", "profile", folder.name)
    assert path.name.endswith(".pt.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"loop", "worker 0"} <= set(names.values())
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ph"] in "MX" and {"pid", "tid", "name"} <= set(e) for e in events)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    assert {e["name"] for e in spans if e["tid"]} >= {"wait", "read", "decode", "resize", "fields"}
    loop = [e for e in spans if names[e["tid"]] == "loop"]
    assert [e["name"] for e in loop] == ["wait for a batch", "step"] * 12
    for number in names:
        row = sorted((e["ts"], e["dur"]) for e in spans if e["tid"] == number)
        assert all(a + long <= b for (a, long), (b, _) in itertools.pairwise(row))


def test_a_run_without_a_profile_has_no_trace(job, tmp_path):
    folder, result = bench(job, settings=SHORT, runs=tmp_path, limit=False, draw=False)
    assert result["trace"] is None
    assert not (folder / "plugins").exists()


def test_served_shares_are_counted_beside_those_asked(job, tmp_path):
    _, result = bench(job, settings=SHORT, runs=tmp_path)
    assert result["mixture"]["bridge"]["asked"] == 0.25
    records = records_of(next(tmp_path.iterdir()))[2:]
    served = sum(r["dataset_counts"].get("bridge", 0) for r in records)
    assert result["mixture"]["bridge"]["served"] == pytest.approx(served / 96)


def test_a_simulated_step_is_part_of_the_time_and_not_of_the_stall(job, tmp_path):
    settings = BenchSettings(seconds=None, steps=10, warmup=6, warmup_seconds=0, compute_ms=60)
    folder, result = bench(job, settings=settings, runs=tmp_path, limit=False, draw=False)
    assert result["p50_s"] >= 0.06
    assert result["stall_s_per_step"] <= result["mean_s"] - 0.06
    assert result["limit_ratio"] is None
    assert not (folder / "report.html").exists()


def test_an_error_of_the_backend_is_the_row_s_cause(job, tmp_path):
    loader = hr.LoaderOptions(batch_size=8, image_size=512)
    small = Job(job.mixture, loader, {"memory": "1MiB"})
    _, result = bench(small, settings=SHORT, runs=tmp_path, limit=False)
    assert result["status"] == "invalid configuration"
    assert "1 MiB" in result["cause"]
    assert result["samples_per_s"] is None


def worker():
    """The process that a benchmark has started."""
    for pid in descendants(os.getpid())[1:]:
        if b"measure.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


ENDLESS = BenchSettings(seconds=600, warmup=2, warmup_seconds=0)


def test_a_killed_run_is_a_row_and_keeps_what_was_measured(job, tmp_path):
    def kill(_title, sight):
        if sight.phase == "measuring":
            os.kill(worker(), signal.SIGKILL)

    folder, result = bench(job, settings=ENDLESS, runs=tmp_path, watch=kill, limit=False)
    assert result["status"] == "killed"
    assert "SIGKILL" in result["cause"]
    assert result["samples_per_s"] > 0
    assert (folder / "report.html").exists()


def test_a_crash_names_its_signal(job, tmp_path):
    _, result = bench(
        job,
        settings=ENDLESS,
        runs=tmp_path,
        limit=False,
        watch=lambda _t, sight: sight.batches and os.kill(worker(), signal.SIGSEGV),
    )
    assert result["status"] == "killed"
    assert "SIGSEGV" in result["cause"]


def test_a_run_that_takes_too_long_is_ended(job, tmp_path):
    settings = BenchSettings(seconds=600, warmup=2, warmup_seconds=0, timeout_s=3)
    _, result = bench(job, settings=settings, runs=tmp_path, limit=False)
    assert result["status"] == "timed out"
    assert "3 s" in result["cause"]
    assert result["wall_s"] < 60
    assert worker() is None


def test_ctrl_c_keeps_what_was_measured_and_marks_it_interrupted(job, tmp_path):
    def interrupt(_title, sight):
        if sight.phase == "measuring":
            raise KeyboardInterrupt

    folder, result = bench(job, settings=ENDLESS, runs=tmp_path, watch=interrupt, limit=False)
    assert result["status"] == "interrupted"
    assert result["samples_per_s"] > 0
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
    assert worker() is None


def test_ctrl_c_while_the_limits_are_measured_ends_the_benchmark(job, tmp_path):
    def interrupt(title, _sight):
        assert title == "limit", "the run began all the same"
        raise KeyboardInterrupt

    _, result = bench(job, settings=SHORT, runs=tmp_path, watch=interrupt)
    assert (result["status"], result["samples_per_s"]) == ("interrupted", None)


def test_runs_that_cannot_be_archived_fail_before_they_run(job, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--runs"):
        bench(job, settings=SHORT, runs=tmp_path / "file")


def test_a_comparison_takes_turns_and_shows_the_spread(job, tmp_path):
    found = compare({"headrace": job}, SHORT, runs=tmp_path, repeats=2)
    row = found.rows["headrace"]
    assert row["status"] == "complete"
    assert len(row["samples_per_s"]["runs"]) == 2
    assert row["samples_per_s"]["min"] <= row["samples_per_s"]["max"]
    assert (found.folder / "report.html").exists()
    written = json.loads((found.folder / "result.json").read_text())
    assert written["comparison"]["headrace"]["samples_per_s"] == row["samples_per_s"]
    assert not found.interrupted


def test_the_rest_of_a_comparison_runs_though_one_fails(job, tmp_path, monkeypatch, capsys):
    from headrace.measure.baselines import BASELINES, native

    monkeypatch.setitem(BASELINES, "absent", "headrace.measure.baselines.absent")
    install = f"pip install {' '.join(f'a-package-{n}' for n in range(12))}"
    baseline = dataclasses.replace(
        native.BASELINE, name="absent", needs=("no_such_module",), install=install
    )
    module = type(sys)("headrace.measure.baselines.absent")
    module.BASELINE = baseline
    monkeypatch.setitem(sys.modules, "headrace.measure.baselines.absent", module)
    mixture = tmp_path / "m.yaml"
    mixture.write_text(job.mixture.to_yaml())
    code = main(
        ["bench", str(mixture), "loader.batch_size=8", "loader.image_size=32", "--versus", "absent"]
        + ["--steps", "5", "--warmup", "2", "--repeats", "1", "--no-limit"]
        + ["--runs", str(tmp_path), "--json", str(tmp_path / "out.json")]
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert code == 1
    assert found["comparison"]["absent"]["status"] == "not installed"
    assert found["comparison"]["headrace"]["status"] == "complete"
    assert found["ratios"] == {}
    assert install in capsys.readouterr().out  # the whole command, however long


def test_ctrl_c_ends_a_comparison_and_keeps_its_rows(job, tmp_path):
    turns = []

    def interrupt(title, sight):
        turns.append(title)
        if title == "headrace, round 2" and sight.phase == "measuring":
            raise KeyboardInterrupt

    settings = BenchSettings(seconds=1.5, warmup=2, warmup_seconds=0)
    found = compare(
        {"headrace": job}, settings, runs=tmp_path, repeats=3, limit=False, watch=interrupt
    )
    assert found.interrupted
    assert len(found.rows["headrace"]["samples_per_s"]["runs"]) == 1
    assert "headrace, round 3" not in turns


# -- the command ---------------------------------------------------------------------------------


def test_the_command_prints_what_matters_and_says_where_it_is(data, tmp_path, capsys):
    arguments = [f"root={data}", "loader.batch_size=8", "loader.image_size=32", "--steps", "10"]
    sources = tmp_path / "m.yaml"
    sources.write_text("sources: [{name: bridge, offset: 2}, {name: kuka, offset: 2}]")
    out = tmp_path / "out.json"
    code = main(
        ["bench", str(sources), *arguments[:2], "--warmup", "2", *arguments[2:]]
        + ["--runs", str(tmp_path / "runs"), "--json", str(out)]
    )
    shown = capsys.readouterr().out
    assert code == 0
    for words in ("samples/s", "of the decode limit", "first batch", "memory", "verdict", "runs"):
        assert words in shown
    assert json.loads(out.read_text())["batches"] == 10


def test_the_limits_can_be_measured_alone(data, tmp_path, capsys):
    sources = tmp_path / "m.yaml"
    sources.write_text(f"root: {data}\nsources: [{{name: kuka, offset: 2}}]")
    code = main(["bench", str(sources), "--limit", "--runs", str(tmp_path / "runs"), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["storage_limit_samples_per_s"] > found["decode_limit_samples_per_s"] > 0


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["loader.batchsize=3"], "'batchsize'.*batch_size"),
        (["headrace.memroy=3"], "'memroy'.*memory"),
        (["image_size=64"], r"loader\.image_size"),
        (["loader.batch_size=0"], "batch_size is 0"),
        (["loader.workers=many"], "loader.workers is 'many'"),
        (["loader.metadata=most"], "loader.metadata is 'most'"),
        (["sources.brigde.weight=1"], "bridge"),
        (["defaults.splt=train"], "split"),
    ],
)
def test_a_wrong_override_names_the_nearest_right_one(overrides, words):
    with pytest.raises(UsageError, match=words):
        jobs_of("oxe29", ["root=/x", *overrides], ["headrace"])


def test_a_backend_that_does_not_exist_is_an_error_with_those_that_do():
    with pytest.raises(UsageError, match="headrace"):
        jobs_of("oxe29", [], ["headrce"])


def test_overrides_go_where_they_belong():
    jobs = jobs_of(
        "oxe29",
        ["root=/x", "loader.batch_size=7", "headrace.memory=1GiB", "sources.bridge.weight=0.5"],
        ["headrace"],
    )
    job = jobs["headrace"]
    assert (job.loader.batch_size, dict(job.options)) == (7, {"memory": "1GiB"})
    assert next(s for s in job.mixture.sources if s.name == "bridge").weight == 0.5
    again = Job.from_dict(json.loads(json.dumps(job.to_dict())))
    assert again == job


@pytest.mark.parametrize("wrong", [{"seconds": None}, {"seconds": -1}, {"warmup": -1}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(UsageError):
        BenchSettings(**wrong)


@pytest.mark.parametrize(("step", "shown"), [(True, True), (False, False)])
def test_a_stall_is_only_shown_of_a_step(step, shown):
    from headrace.cli.output import run_text
    from headrace.measure.isolated import Sight

    said = run_text("headrace", Sight("measuring", 3, 1200.0, 0.97, 250_000_000), step=step)
    assert said.startswith("headrace: measuring, 1,200 samples/s")
    assert ("97% stalled" in said) == shown


# -- parts ---------------------------------------------------------------------------------------


def test_limits_before_and_after_a_run_are_averaged():
    before = {"decode": 100.0, "asked": {"a": 1.0}, "processes": 2}
    assert mean_limit([before, {**before, "decode": 110.0}]) == {**before, "decode": 105.0}
    assert mean_limit([None, before]) == before
    assert mean_limit([None]) is None
