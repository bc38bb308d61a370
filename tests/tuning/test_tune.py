"""`headrace tune` for real: short searches on small data, spaces of the real backends."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest

from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.measure.baselines import BASELINES, find_baseline
from headrace.measure.bench import BenchSettings
from headrace.measure.jobs import jobs_of
from headrace.testing import synthesize
from headrace.tuning.guard import Guard
from headrace.tuning.search import tune as tune_module
from headrace.tuning.search.asked import Asked
from headrace.tuning.search.evaluation import Evaluation
from headrace.tuning.search.judge import Rules
from headrace.tuning.search.space import overrides, space_of
from headrace.tuning.search.tune import tune
from headrace.tuning.study import read_study

FIXED = ("loader.batch_size=8", "loader.image_size=32")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune")
    synthesize(root, only=["kuka"], episodes=3, seed=1, _max_steps=9)
    (root / "m.yaml").write_text(f"root: {root}\nsources: [{{name: kuka, offset: 2}}]")
    return root


def asked(data, backend, *given, minutes=5.0, steps=10):
    settings = BenchSettings(seconds=None, steps=steps, warmup=2, warmup_seconds=0.0)
    mixture = str(data / "m.yaml")
    guard = Guard(min_available=0)
    return Asked(mixture, (*FIXED, *given), backend, settings, guard, minutes)


# -- spaces of the backends ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", BASELINES)
@pytest.mark.parametrize("cpus", [1, 2, 16])
def test_every_value_of_a_backend_s_space_is_an_option_it_has(backend, cpus, data):
    baseline = find_baseline(backend)
    space, fixed = space_of(baseline, cpus, {}, reorder=True)
    assert fixed == ()
    assert space.knobs
    for knob in space.knobs:
        assert knob.key in space.start
        for value in knob.values:
            # Each single change passes the backend's own check, or nothing would be tried of it.
            needed = {**knob.needs, **knob.along, knob.key: value}
            changes = space.normal(needed)
            assert changes.get(knob.key) == value, "it is the default"
            assert space.problem(changes) is None
            jobs_of(data / "m.yaml", overrides(changes), [backend])


def test_what_is_delivered_is_left_alone_unless_allowed():
    baseline = find_baseline("tfdata")
    untouched = ("shuffle.", "sampling.", "metadata.", "mix_block_length", "deterministic")
    keys = [knob.key for knob in space_of(baseline, 4, {})[0].knobs]
    assert not [key for key in keys if any(word in key for word in untouched)]
    more = [knob.key for knob in space_of(baseline, 4, {}, reorder=True)[0].knobs]
    assert "tfdata.shuffle.global_buffer" in more


def test_options_that_were_given_stay_as_they_are():
    baseline = find_baseline("tfdata")
    given = {"tfdata.mixing.parallelism_mode": "sqrt", "tfdata.tfds_read.cycle_length": 4}
    space, fixed = space_of(baseline, 4, given)
    keys = [knob.key for knob in space.knobs]
    assert fixed == (
        "tfdata.pipeline.emit_encoded_pairs",  # it would change parallelism_mode too
        "tfdata.mixing.parallelism_mode",
        "tfdata.tfds_read.cycle_length",
    )
    assert "tfdata.tfds_read.interleave_parallelism" in keys  # needs the length that was given
    # The check sees what was given: eight calls are too many for four shards.
    assert "tfds_read.cycle_length" in space.problem({"tfdata.tfds_read.interleave_parallelism": 8})


# -- searches ------------------------------------------------------------------------------------


def test_a_search_runs_is_written_and_goes_on_without_repeating(data, tmp_path, monkeypatch):
    if not find_spec("torch"):
        pytest.skip("torch is not installed")
    only(monkeypatch, "torch.prefetch_factor", 4)
    told = []
    what = asked(data, "torch", "torch.workers=0", minutes=5)
    first = tune(what, tmp_path / "t", tell=lambda *each: told.append(each))
    assert first.fixed == ("torch.workers",)
    assert [step.key for step in first.found.steps if step.stage == "ladder"] == [
        "torch.prefetch_factor"
    ]
    assert len(told) == first.made == first.found.runs == 2
    assert all(attempt.status == "pass" for _, _, attempt in told)
    written = json.loads((tmp_path / "t" / "result.json").read_text())
    assert written["winner"] == overrides(first.found.winner)
    assert written["command"].startswith(f"headrace bench {data / 'm.yaml'} loader.batch_size=8")
    assert read_study(tmp_path / "t" / "tuned.yaml").backend == "torch"
    assert "## Decision" in (tmp_path / "t" / "log.md").read_text()
    again = tune(what, tmp_path / "t")
    assert (again.made, again.found) == (0, first.found)


def test_headrace_is_checked_and_failures_are_rows(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    only(monkeypatch, "loader.budget", "1kB")  # which holds nothing
    command = ["tune", str(data / "m.yaml"), *FIXED, "loader.keep_free=0"]
    command += ["--seconds", "0.2", "--warmup", "2", "--min-available", "0", "--minutes", "5"]
    assert main([*command, "--json", "out.json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    [step] = found["search"]["steps"]
    [bad] = step["tried"]
    assert bad["difference"] == {"loader.budget": "1kB"}
    assert bad["status"] == "invalid configuration"
    assert "does not hold two batches" in bad["cause"]
    assert found["search"]["sampler"] is None
    assert "loader.budget" in shown
    assert "tunes/m_headrace" in shown


def test_tfdata_is_tuned(data, tmp_path, monkeypatch):
    if not find_spec("tensorflow") or not find_spec("tensorflow_datasets"):
        pytest.skip("TensorFlow is not installed")
    only(monkeypatch, "tfdata.pipeline.emit_encoded_pairs", False)
    found = tune(asked(data, "tfdata", "sources.kuka.split=train", steps=4), tmp_path / "t").found
    [tried] = found.steps[0].tried
    assert tried.status == "pass"
    assert tried.contrast.ratio > 0
    assert tried.changes["tfdata.pipeline.post_mix_decode_resize"] is False


def only(monkeypatch, key, *values):
    """Let a search try these values of one option, once each: the rest is slow, and not new."""
    real = tune_module.search

    def search(space, evaluate, budget, _sampler, **more):
        knob = next(knob for knob in space.knobs if knob.key == key)
        small = replace(space, knobs=(replace(knob, values=values),))
        return real(small, evaluate, budget, None, **{**more, "rules": Rules(hint=1000.0)})

    monkeypatch.setattr(tune_module, "search", search)


def test_ctrl_c_keeps_the_best_so_far_and_says_how_to_go_on(data, tmp_path):
    command = [sys.executable, "-m", "headrace", "tune", str(data / "m.yaml"), *FIXED]
    command += ["loader.keep_free=0", "--min-available", "0", "--seconds", "0.3", "--out", "t"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(400):
        if list((tmp_path / "t").glob("runs/*/process")):  # a run is under way
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "to resume: headrace tune" in err
    assert "headrace bench" in out
    written = json.loads((tmp_path / "t" / "result.json").read_text())
    assert written["search"]["ended"] == "interrupted"
    assert (tmp_path / "t" / "tuned.yaml").exists()


def test_a_run_that_the_time_cuts_off_is_no_failure_and_not_remembered(data, tmp_path):
    what = asked(data, "headrace", "loader.keep_free=0", steps=10_000_000)
    evaluate = Evaluation(what, tmp_path)
    attempt = evaluate({}, "ladder 1", 0, 2.0)
    assert (attempt.status, evaluate.made, evaluate.remembered) == ("skipped", 0, 0)
    measured = replace(what, settings=BenchSettings(seconds=30))
    assert Evaluation(measured, tmp_path)({}, "ladder 1", 0, 20.0).status == "skipped"
    assert len(list((tmp_path / "runs").iterdir())) == 1  # the second was not begun


# -- what cannot be ------------------------------------------------------------------------------


def test_too_little_time_is_an_error_before_anything_runs(data, tmp_path):
    what = Asked(str(data / "m.yaml"), FIXED, "headrace", guard=Guard(min_available=0), minutes=0.5)
    with pytest.raises(UsageError, match="0.5 minutes hold no comparison.*Raise --minutes"):
        tune(what, tmp_path / "t")
    assert not (tmp_path / "t" / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "tfdat"], "Did you mean 'tfdata'"),
        (["--minutes", "0"], "minutes is 0"),
        (["--min-available", "4000GiB"], "--min-available is 4000"),
        (["--backend", "torch", "torch.workrs=3"], "no option 'workrs'"),
        (
            ["--backend", "tfdata", "tfdata.tfds_read.interleave_parallelism=8"],
            "Raise tfds_read.cycle_length to 8",
        ),
        (
            ["--backend", "torch", "torch.workers=3", "torch.prefetch_factor=2"],
            "no option left to try",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_named(data, arguments, message, tmp_path, capsys):
    if "torch" in arguments and not find_spec("torch"):
        pytest.skip("torch is not installed")
    if "tfdata" in arguments and not find_spec("tensorflow_datasets"):
        pytest.skip("TensorFlow is not installed")
    out = ["--out", str(tmp_path / "t")]
    assert main(["tune", str(data / "m.yaml"), *arguments, *out]) == 2
    assert message in capsys.readouterr().err
