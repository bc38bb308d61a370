"""The run folder: what is written is read again, damage is skipped and counted."""

import json
from datetime import datetime

import numpy as np
import pytest

from headrace import measure
from headrace.errors import UsageError
from headrace.measure.clock import Step
from headrace.measure.columns import Batches, percentiles
from headrace.measure.machine import machine_facts
from headrace.measure.results import read_run, summarise
from headrace.measure.runs import (
    BATCHES,
    MEMORY,
    RESULT,
    Outcome,
    RunReader,
    RunWriter,
    job_facts,
    new_run,
    outcome_of,
    source_counts,
    write_json,
)

REQUEST = {"name": "made", "backend": "headrace", "job": {}, "machine": {"cpu": "fast"}}
REQUEST |= {"settings": {"compute_ms": 0}}


def write_run(folder, batches=40, warmup=5, first=0):
    """A run of batches that took 10, 20, 30, ... ms."""
    now = 100.0
    with RunWriter(folder, batches=True, memory=True, resume=first) as run:
        for number in range(first, batches):
            seconds = 0.01 * (1 + number % 7)
            now += seconds
            step = Step(now, seconds, seconds / 4, number < warmup)
            run.batch(step, samples=8, counts={"a": 5 + number % 3, "b": 3 - number % 3})
            run.memory(anonymous=10**8 + number * 10**6, available=10**9 - number, rss=2 * 10**8)
    return run


def damage(path, number):
    lines = path.read_text().splitlines(keepends=True)
    lines[number] = lines[number][:30] + "\n"
    path.write_text("".join(lines))


def figures(folder, outcome=None):
    """Of result.json, and of a report of the same run without it."""
    (folder / RESULT).unlink(missing_ok=True)
    derived = read_run(folder)
    result = summarise(folder, REQUEST, outcome or Outcome("complete"), None)
    write_json(folder / RESULT, result)
    return result, derived, read_run(folder)


@pytest.mark.parametrize("place", [0, 7, 20, 39])
def test_a_damaged_line_gives_the_same_figures_everywhere_and_is_said_once(tmp_path, place, caplog):
    write_run(tmp_path)
    damage(tmp_path / BATCHES, place)
    measured = {"elapsed_s": 99.0, "samples": 280}  # of all records, also of the lost one
    outcome = Outcome("complete", measured=measured, peak_anonymous=139_000_000)
    result, derived, stated = figures(tmp_path, outcome)
    assert len(derived.batches) == 39
    assert result["batches"] == 39 - (5 if place >= 5 else 4)
    assert result["damaged_records"] == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert BATCHES in said
    assert result["samples_per_s"] == pytest.approx(8 / derived.numbers["mean_s"])
    for key, value in derived.numbers.items():
        assert result[key] == pytest.approx(value), key
        assert stated.numbers[key] == pytest.approx(value), key
    served = {name: share["served"] for name, share in result["mixture"].items()}
    assert served == {name: share.actual for name, share in derived.mixture.items()}
    problem = next(each for each in stated.problems if BATCHES in each)
    assert str(place + 1) in problem
    assert "39" in problem


def test_a_whole_run_has_the_figures_of_its_records(tmp_path):
    write_run(tmp_path)
    result, derived, stated = figures(tmp_path, Outcome("complete", measured={"elapsed_s": 2.0}))
    assert (result["batches"], result["samples"], result["damaged_records"]) == (35, 280, 0)
    assert result["samples_per_s"] == 140  # by the clock of the process that measured
    assert result["stall_s_per_step"] == pytest.approx(result["mean_s"] / 4)
    assert stated.problems == ()
    assert stated.numbers["samples_per_s"] == 140
    assert derived.status == "incomplete"
    assert derived.numbers["p50_s"] == result["p50_s"] == pytest.approx(0.04)


def test_half_a_line_of_a_killed_run_is_skipped_and_counted(tmp_path):
    write_run(tmp_path)
    for name in (BATCHES, MEMORY):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text[:-20])
    reader = RunReader(tmp_path)
    assert (len(reader.batches), len(reader.memory)) == (39, 39)
    assert reader.damaged == {BATCHES: 1, MEMORY: 1}
    assert all("half a line" in problem for problem in reader.problems)


def test_a_folder_without_files_is_empty(tmp_path):
    reader = RunReader(tmp_path)
    assert (reader.result, len(reader.batches), len(reader.memory)) == ({}, 0, 0)
    found = reader.figures()
    assert (found["batches"], found["samples_per_s"], found["p99_s"]) == (0, None, None)
    assert len(reader.problems) == 3


def test_a_resumed_run_keeps_what_came_before_its_checkpoint(tmp_path):
    write_run(tmp_path, batches=20)
    damage(tmp_path / BATCHES, 3)
    with (tmp_path / BATCHES).open("a") as file:
        file.write('{"dt_s": 0.1}\n')  # whose batch is not known
    write_run(tmp_path, batches=25, first=12)
    reader = RunReader(tmp_path)
    assert reader.batches.idx.tolist() == [0, 1, 2, *range(4, 25)]
    assert (np.diff(reader.batches.t_s) > 0).all()
    assert len(reader.memory) == 20 + 13
    assert reader.damaged[BATCHES] == 0  # the damaged line is gone
    write_run(tmp_path, batches=4)
    assert len(RunReader(tmp_path).batches) == 4


def test_the_writer_keeps_the_extremes_of_memory(tmp_path):
    run = write_run(tmp_path)
    assert run.peak_anonymous == 10**8 + 39 * 10**6
    assert run.min_available == 10**9 - 39
    assert RunReader(tmp_path).memory.anon_mb.max() == pytest.approx(139, abs=0.1)


def test_a_record_says_how_long_ago_its_dataset_was_dominant(tmp_path):
    with RunWriter(tmp_path, batches=True) as run:
        for name in "abba":
            run.batch(Step(1.0, 0.1, 0.0, False), samples=1, counts={name: 1})
    records = [json.loads(line) for line in (tmp_path / BATCHES).read_text().splitlines()]
    assert [record["dominant_gap_batches"] for record in records] == [0, 0, 1, 3]


def test_what_cannot_be_written_is_said_with_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        RunWriter(tmp_path / "file" / "run", batches=True)
    with pytest.raises(UsageError, match="file"):
        new_run(tmp_path / "file", "x")


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    names = [new_run(tmp_path, "a b/c", now).name for _ in range(3)]
    assert names == [f"2026-01-02_03-04-05_a_b_c{end}" for end in ("", "_2", "_3")]


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    write_json(tmp_path / "x.json", {"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [None, 1.5]}


def test_finish_writes_how_a_run_ended(tmp_path):
    RunWriter(tmp_path / "run").finish("failed", "ValueError: no", {"samples_per_s": 3.0})
    run = read_run(tmp_path / "run")
    assert (run.label, run.status, run.cause) == ("run", "failed", "ValueError: no")
    assert run.numbers["samples_per_s"] == 3


def test_a_run_knows_its_date_host_and_job(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "slurm" not in job_facts()
    values = {"SLURM_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "n07"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    RunWriter(tmp_path).finish("complete")
    for facts in (machine_facts(), read_run(tmp_path).machine):
        assert facts["slurm"] == {"job_id": "4711", "array_task_id": "3", "node": "n07"}
        assert datetime.fromisoformat(facts["date"]).tzinfo is not None
        assert facts["host"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "complete"), (KeyboardInterrupt(), "interrupted"), (ValueError("x"), "failed")],
)
def test_an_exception_is_an_outcome(error, status):
    assert outcome_of(error).status == status


def test_percentiles_leave_out_what_is_not_known():
    assert percentiles(np.array([1.0, np.nan, 3.0]))["p50_s"] == 2
    assert percentiles(np.array([])) == {"p50_s": None, "p90_s": None, "p99_s": None}


def test_samples_are_those_that_the_record_states_else_those_counted():
    records = [{"samples": 9, "dataset_counts": {"a": 4}}, {"dataset_counts": {"a": 4, "b": 1}}, {}]
    assert Batches.of(records).samples.tolist() == [9, 5, 0]


def test_sources_of_a_batch_are_counted():
    assert source_counts(np.array([2, 0, 2]), ["a", "b", "c"]) == {"a": 1, "c": 2}
    assert source_counts(None, ["a"]) == {}


def test_every_public_name_of_the_room_is_found():
    for name in measure.__all__:
        assert getattr(measure, name).__name__.endswith(name)
