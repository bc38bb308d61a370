"""Guarded runs: every way a run can end is an attempt with a status, a cause and its figures."""

import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.machine import available_memory
from headrace.errors import UsageError
from headrace.measure.isolated import Look
from headrace.measure.job import BenchSettings, Job
from headrace.testing import synthesize
from headrace.tuning.study.trial import Guard, Trial, try_once

SHORT = BenchSettings(seconds=None, steps=12, warmup=2, warmup_seconds=0.0)
ENDLESS = BenchSettings(seconds=600, warmup=2, warmup_seconds=0.0)
OPEN = Guard(min_available=0, stall_seconds=300, timeout_s=300)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    root = tmp_path_factory.mktemp("trial")
    synthesize(root, only=["kuka"], episodes=3, seed=1, _max_steps=9)
    sources = [{"name": "kuka", "offset": 2, "split": "train", "val_split": "train"}]
    mixture = hr.Mixture.from_dict({"root": str(root), "sources": sources})
    loader = hr.LoaderOptions(batch_size=8, image_size=32, workers=1)
    return Job(mixture, loader, {"keep_free": 0})


def program(code, label="program"):
    return Trial(label, backend="command", command=(sys.executable, "-c", code))


def wait_until(condition, seconds=90.0):
    """Poll; the limit only guards against hanging."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def gone(pid):
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# -- benchmarks ----------------------------------------------------------------------------------


def test_a_complete_run_has_its_figures_and_no_report(job, tmp_path):
    attempt = try_once(Trial("base", job=job, settings=SHORT), tmp_path, OPEN)
    assert (attempt.status, attempt.cause) == ("complete", None)
    figures = ("samples_per_s", "p50_s", "p99_s", "peak_anon_mb", "min_available_mb", "wall_s")
    for name in (*figures, "steps_per_s"):
        assert getattr(attempt, name) > 0, name
    assert (attempt.batches, attempt.notes) == (12, ())
    assert attempt.loader_share is None  # nothing is simulated: a loader always waits
    assert (Path(attempt.folder) / "result.json").exists()
    assert not (Path(attempt.folder) / "report.html").exists()


def test_a_run_that_its_time_limit_cuts_says_how_far_it_got(job, tmp_path):
    settings = replace(SHORT, steps=1_000_000, seconds=0.05)
    attempt = try_once(Trial("cut", job=job, settings=settings), tmp_path, OPEN)
    assert attempt.complete
    assert 0 < attempt.batches < 1_000_000
    assert attempt.notes == (f"{attempt.batches:.0f} of 1000000 batches: the time limit is 0.05 s",)


def test_a_run_under_the_memory_floor_is_stopped_cleanly_and_keeps_its_figures(job, tmp_path):
    phases = []

    class Falling(Guard):
        def check(self, look):
            left = 100 if phases.count("measuring") > 1 else 1 << 40
            return Guard.check(self, Look(left, 0, 0, 0.0))

    guard = Falling(min_available=1 << 30, stall_seconds=300, timeout_s=300)
    attempt = try_once(
        Trial("big", job=job, settings=ENDLESS),
        tmp_path,
        guard,
        watch=lambda _title, sight: phases.append(sight.phase),
    )
    assert attempt.status == "floor reached"
    assert "1.00 GiB" in attempt.cause
    assert "SIGKILL" not in attempt.cause  # it ended by itself when it was asked to
    assert attempt.samples_per_s > 0
    assert len(attempt.notes) == 1  # that the figures are those until then


def test_what_the_loader_refuses_is_an_invalid_configuration(job, tmp_path):
    loader = hr.LoaderOptions(batch_size=8, image_size=512)
    small = Job(job.mixture, loader, {"memory": "1MiB"})
    attempt = try_once(Trial("small", job=small, settings=SHORT), tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "does not hold two batches" in attempt.cause


@pytest.mark.skipif(
    not (find_spec("tensorflow") and find_spec("tensorflow_datasets")), reason="no TensorFlow here"
)
def test_options_that_exclude_each_other_are_an_invalid_configuration(job, tmp_path):
    options = {"pipeline.interleave_parallelism": 2}
    wrong = Job(job.mixture, options=options)
    attempt = try_once(Trial("p2", backend="tfdata", job=wrong, settings=SHORT), tmp_path, OPEN)
    assert attempt.status == "invalid configuration"
    assert "pipeline.episode_concurrency" in attempt.cause


def test_a_simulated_step_and_validation_in_the_middle_of_a_run_are_timed(job, tmp_path):
    settings = BenchSettings(
        seconds=None,
        steps=9,
        warmup=4,
        warmup_seconds=0,
        compute_ms=40,
        validate_every=4,
        validate_batches=2,
    )
    attempt = try_once(Trial("validation", job=job, settings=settings), tmp_path, OPEN)
    assert attempt.status == "complete"
    assert 0 <= attempt.loader_share < 1
    assert attempt.p50_s >= 0.04
    assert attempt.validation_start_s > 0


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
    assert attempt.status == "complete"
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

    class Patient(Guard):  # a busy machine may take its time to start the program
        def check(self, look):
            return Guard.check(self, look) if list(tmp_path.glob("*/pids")) else None

    guard = Patient(min_available=0, stall_seconds=1, grace_s=1)
    attempt = try_once(program(code), tmp_path, guard)
    assert attempt.status == "stalled"
    assert "SIGKILL" in attempt.cause
    wait_until(lambda: all(map(gone, (Path(attempt.folder) / "pids").read_text().split())))


@pytest.mark.parametrize("target", ["$HEADRACE_RUN/batch_times.jsonl", "/dev/stdout"])
def test_a_program_that_records_or_prints_is_not_idle(target, tmp_path):
    idle, done = [], tmp_path / "done"

    class Looking(Guard):
        def check(self, look):
            idle.append(look.idle_s)
            if sum(after < before for before, after in pairwise(idle)) == 2:
                done.touch()

    command = f"until test -e {done}; do echo '{{}}' >> {target}; sleep 0.7; done"
    trial = Trial("slow", backend="command", command=command)
    attempt = try_once(trial, tmp_path, Looking(min_available=0, timeout_s=90))
    assert attempt.status == "complete"


def test_a_text_is_run_by_a_shell_and_its_time_is_limited(tmp_path):
    trial = Trial("shell", backend="command", command="sleep 600 & wait")
    attempt = try_once(trial, tmp_path, Guard(min_available=0, timeout_s=1.5))
    assert attempt.status == "timed out"
    assert attempt.wall_s < 60  # it did not sleep to its end


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
    assert "SIGKILL" in attempt.cause
    assert attempt.min_available_mb < 105  # what its own group had left, not the machine


def test_a_child_that_the_kernel_kills_for_memory_is_known_as_such(small_group, tmp_path):
    enter = f"echo $$ > {small_group}/cgroup.procs; {sys.executable} -c '{EAT}'; exit 3"
    attempt = try_once(Trial("oom", backend="command", command=enter), tmp_path, OPEN)
    assert attempt.status == "oom-killed"


# -- guards --------------------------------------------------------------------------------------


def test_a_floor_above_what_is_available_is_refused_with_the_numbers():
    with pytest.raises(UsageError, match=r"--x is 40\.00 GiB.*20\.00 GiB .*24\.00 GiB"):
        Guard(min_available="40GiB").check_floor(20 << 30, 24 << 30, "--x")
    Guard(min_available=1 << 30).check_floor(20 << 30, 24 << 30)


def test_the_floor_counts_before_a_stall():
    guard = Guard(min_available=100, stall_seconds=5)
    assert guard.check(Look(100, 0, 0, 5.0)) is None
    assert guard.check(Look(99, 0, 0, 9.0))[0] == "floor reached"
    assert guard.check(Look(100, 0, 0, 5.1))[0] == "stalled"
