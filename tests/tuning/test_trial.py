"""Guarded runs: every way a run can end is an attempt with a status, a cause and its figures."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.machine import available_memory
from headrace.measure.bench import BenchSettings
from headrace.measure.bench.watched import Look
from headrace.measure.job import Job
from headrace.testing import synthesize
from headrace.tuning.attempt import Attempt
from headrace.tuning.guard import Guard, check_floor
from headrace.tuning.row import Row, row_of
from headrace.tuning.trial import Trial, run_trial, try_once

SHORT = BenchSettings(seconds=None, steps=12, warmup=2, warmup_seconds=0.0)
ENDLESS = BenchSettings(seconds=600, warmup=2, warmup_seconds=0.0)
OPEN = Guard(min_available=0, stall_seconds=60, timeout_s=60)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    root = tmp_path_factory.mktemp("trial")
    synthesize(root, only=["kuka"], episodes=3, seed=1, _max_steps=9)
    sources = [{"name": "kuka", "offset": 2, "split": "train", "val_split": "train"}]
    mixture = hr.Mixture.from_dict({"root": str(root), "sources": sources})
    return Job(mixture, batch_size=8, image_size=32, workers=1, options={"keep_free": 0})


def program(code, label="program"):
    return Trial(label, backend="command", command=(sys.executable, "-c", code))


def gone(pid):
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# -- benchmarks ----------------------------------------------------------------------------------


def test_a_run_that_completes_is_a_pass_with_its_figures(job, tmp_path):
    row = run_trial(Trial("base", job=job, settings=SHORT), tmp_path, OPEN, repeats=2)
    assert (row.status, row.cause, len(row.attempts)) == ("pass", None, 2)
    low, high = row.spread
    assert low <= row.figures["samples_per_s"] <= high
    for name in ("p50_s", "p99_s", "peak_anon_mb", "min_available_mb", "wall_s", "steps_per_s"):
        assert row.figures[name] > 0, name
    assert row.figures["loader_share"] is None  # nothing is simulated: a loader always waits
    assert all((Path(folder) / "report.html").exists() for folder in row.folders)


def test_the_loader_s_share_is_that_of_the_simulated_step(job, tmp_path):
    settings = BenchSettings(seconds=None, steps=5, warmup=4, warmup_seconds=0, compute_ms=40)
    attempt = try_once(Trial("step", job=job, settings=settings), tmp_path, OPEN)
    assert 0 <= attempt.loader_share < 0.6
    assert attempt.p50_s >= 0.04


def test_a_run_under_the_memory_floor_is_stopped_cleanly_and_keeps_its_figures(job, tmp_path):
    phases = []

    class Falling(Guard):
        def check(self, look):
            left = 100 if phases.count("measuring") > 1 else 1 << 40
            return Guard.check(self, Look(left, 0, 0, 0.0))

    guard = Falling(min_available=1 << 30, stall_seconds=60, timeout_s=60)
    attempt = try_once(
        Trial("big", job=job, settings=ENDLESS),
        tmp_path,
        guard,
        watch=lambda _title, sight: phases.append(sight.phase),
    )
    assert attempt.status == "floor reached"
    assert "under the floor of 1.00 GiB" in attempt.cause
    assert "SIGKILL" not in attempt.cause  # it ended by itself when it was asked to
    assert attempt.samples_per_s > 0
    assert attempt.notes == ("figures up to where it was stopped",)


def test_what_the_loader_refuses_is_an_invalid_configuration(job, tmp_path):
    small = Job(job.mixture, batch_size=8, image_size=512, options={"memory": "1MiB"})
    attempt = try_once(Trial("small", job=small, settings=SHORT), tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "does not hold two batches" in attempt.cause


@pytest.mark.skipif(
    not (find_spec("tensorflow") and find_spec("tensorflow_datasets")), reason="no TensorFlow here"
)
def test_options_that_exclude_each_other_are_an_invalid_configuration(job, tmp_path):
    options = {"pipeline.interleave_parallelism": 2}
    wrong = Job(job.mixture, batch_size=8, image_size=32, options=options)
    attempt = try_once(Trial("p2", backend="tfdata", job=wrong, settings=SHORT), tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "above pipeline.episode_concurrency, which is 1" in attempt.cause


def test_validation_in_the_middle_of_a_run_is_timed(job, tmp_path):
    settings = BenchSettings(
        seconds=None, steps=9, warmup=2, warmup_seconds=0, validate_every=4, validate_batches=2
    )
    attempt = try_once(Trial("validation", job=job, settings=settings), tmp_path, OPEN)
    assert attempt.status == "pass"
    assert 0 < attempt.validation_start_s < 5


def test_a_run_is_held_to_its_cpus(job, tmp_path):
    settings = BenchSettings(seconds=None, steps=4, warmup=1, warmup_seconds=0, cpus=9999)
    attempt = try_once(Trial("cpus", job=job, settings=settings), tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "cpus is 9999, but" in attempt.cause


# -- programs of others --------------------------------------------------------------------------

STEPS = """
import json, os
with open(os.path.join(os.environ["HEADRACE_RUN"], "batch_times.jsonl"), "w") as file:
    for i in range(10):
        record = {"dt_s": 0.1, "fetch_dt_s": 0.02, "samples": 8, "is_warmup": i < 2}
        print(json.dumps(record), file=file)
"""


def test_a_program_s_steps_are_read_from_its_folder(tmp_path):
    attempt = try_once(program(STEPS), tmp_path, OPEN)
    assert attempt.status == "pass"
    assert attempt.samples_per_s == pytest.approx(80)
    assert attempt.loader_share == pytest.approx(0.2)
    assert attempt.p90_s == pytest.approx(0.1)


def test_what_a_program_states_counts_more_than_its_steps(tmp_path):
    result = Path("result.json")
    code = STEPS + (
        f"open(os.path.join(os.environ['HEADRACE_RUN'], {str(result)!r}), 'w')"
        '.write(\'{"samples_per_s": 50, "loader_share": 0.5}\')'
    )
    attempt = try_once(program(code), tmp_path, OPEN)
    assert (attempt.samples_per_s, attempt.loader_share) == (50, 0.5)


def test_a_program_that_fails_gives_its_last_words(tmp_path):
    attempt = try_once(program("raise ValueError('no such optimizer')"), tmp_path, OPEN)
    assert attempt.status == "failed"
    assert attempt.cause == "exit code 1: ValueError: no such optimizer"


def test_a_program_that_is_not_there_is_an_invalid_configuration(tmp_path):
    trial = Trial("none", backend="command", command=("no-such-program", "x"))
    attempt = try_once(trial, tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "'no-such-program' cannot be run" in attempt.cause


def test_a_hanging_program_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(os.environ['HEADRACE_RUN'] + '/pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    attempt = try_once(
        program(code), tmp_path, Guard(min_available=0, stall_seconds=1.5, grace_s=1)
    )
    assert attempt.status == "stalled"
    assert attempt.cause.startswith("no batch for 1.5 s; it did not end within 1 s of SIGTERM")
    assert all(gone(pid) for pid in (Path(attempt.folder) / "pids").read_text().split())


@pytest.mark.parametrize("target", ["$HEADRACE_RUN/batch_times.jsonl", "/dev/stdout"])
def test_a_program_that_records_or_prints_is_not_stalled(target, tmp_path):
    command = f"for i in 1 2 3 4 5; do echo '{{}}' >> {target}; sleep 0.4; done"
    trial = Trial("slow", backend="command", command=command)
    attempt = try_once(trial, tmp_path, Guard(min_available=0, stall_seconds=1.5))
    assert attempt.status == "pass"


def test_a_text_is_run_by_a_shell_and_its_time_is_limited(tmp_path):
    trial = Trial("shell", backend="command", command="sleep 600 & wait")
    attempt = try_once(trial, tmp_path, Guard(min_available=0, timeout_s=1.5))
    assert (attempt.status, attempt.cause) == ("timed out", "not done after 2 s")
    assert attempt.wall_s < 4


EAT = """
import time
held = []
for _ in range(15):
    held.append(bytearray(20_000_000))
    time.sleep(0.1)
time.sleep(60)
"""


def test_a_program_that_eats_memory_reaches_the_floor(tmp_path):
    guard = Guard(min_available=available_memory() - (150 << 20), stall_seconds=60)
    attempt = try_once(program(EAT), tmp_path, guard)
    assert attempt.status == "floor reached"
    assert attempt.peak_anon_mb > 0
    assert attempt.min_available_mb * 1e6 < guard.min_available


@pytest.fixture
def small_group():
    """A control group (v1) with 100 MB, where one can be made."""
    folder = Path("/sys/fs/cgroup/memory") / f"headrace_test_{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(100 << 20))
    except OSError:
        pytest.skip("no control group of memory can be made here")
    yield folder
    folder.rmdir()


def test_a_program_that_the_kernel_kills_for_memory_is_known_as_such(small_group, tmp_path):
    enter = f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} -c '{EAT}'"
    attempt = try_once(Trial("oom", backend="command", command=enter), tmp_path, OPEN)
    assert attempt.status == "oom-killed"
    assert attempt.cause == "out of memory: the kernel killed it (SIGKILL)"
    assert attempt.min_available_mb < 105  # what its own group had left, not the machine


def test_a_child_that_the_kernel_kills_for_memory_is_known_as_such(small_group, tmp_path):
    enter = f"echo $$ > {small_group}/cgroup.procs; {sys.executable} -c '{EAT}'; exit 3"
    attempt = try_once(Trial("oom", backend="command", command=enter), tmp_path, OPEN)
    assert attempt.status == "oom-killed"


# -- rules and rows ------------------------------------------------------------------------------


def test_a_floor_above_what_is_there_is_refused_with_the_numbers():
    with pytest.raises(hr.UsageError, match=r"40\.00 GiB, but only 20\.00 GiB .* 24\.00 GiB"):
        check_floor(40 << 30, 20 << 30, 24 << 30)
    check_floor(1 << 30, 20 << 30, 24 << 30)


def test_the_floor_counts_before_a_stall():
    guard = Guard(min_available=100, stall_seconds=5)
    assert guard.check(Look(100, 0, 0, 5.0)) is None
    assert guard.check(Look(99, 0, 0, 9.0))[0] == "floor reached"
    assert guard.check(Look(100, 0, 0, 5.1)) == ("stalled", "no batch for 5 s")
    assert guard.check_memory(Look(100, 0, 0, 5.1)) is None


def test_a_row_with_a_bad_round_does_not_pass_and_survives_json():
    row = row_of(
        "x",
        "a=1",
        "headrace",
        [
            Attempt("pass", samples_per_s=100.0, peak_anon_mb=5.0),
            Attempt("stalled", "no batch for 5 s", peak_anon_mb=9.0, notes=("a note",)),
        ],
    )
    assert (row.status, row.cause) == ("stalled", "1 of 2 rounds: no batch for 5 s")
    assert row.figures["samples_per_s"] == 100.0
    assert row.figures["peak_anon_mb"] == 9.0
    assert row.rates == (100.0, None)
    assert Row.from_dict(row.to_dict()) == row
