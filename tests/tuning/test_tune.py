"""`headrace tune` for real: short searches on small data, spaces of the real backends."""

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.measure.baselines import BASELINES, find_baseline
from headrace.measure.job import jobs_of
from headrace.testing import synthesize
from headrace.tuning import search as search_module
from headrace.tuning import tune as tune_module
from headrace.tuning.search import overrides, space_of
from headrace.tuning.study import read_study
from headrace.tuning.study.document import Entry, Study
from headrace.tuning.study.trial import Guard
from headrace.tuning.tune import option_rows, tune
from tests.tuning.test_study_trial import wait_until

pytestmark = pytest.mark.skipif(not find_spec("optuna"), reason="optuna is not installed")

FIXED = ("loader.batch_size=8", "loader.image_size=32")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune")
    synthesize(root, only=["kuka"], episodes=3, seed=1, _max_steps=9)
    (root / "m.yaml").write_text(f"root: {root}\nsources: [{{name: kuka, offset: 2}}]")
    return root


def asked(data, backend, *given, steps=10):
    return Study(
        mixture=str(data / "m.yaml"),
        overrides=(*FIXED, *given),
        backend=backend,
        seconds=None,
        steps=steps,
        warmup=2,
        warmup_seconds=0.0,
        guard=Guard(min_available=0),
        runs=(Entry(label="defaults"),),
    )


@pytest.fixture
def only(monkeypatch):
    """Let a search try these values of one option, and prove nothing: the rest is slow."""

    def limit(key, *values):
        real = tune_module.space_of

        def space_of(*arguments, **options):
            space = real(*arguments, **options)
            knob = next(knob for knob in space.knobs if knob.key == key)
            return replace(space, knobs=(replace(knob, values=values),))

        monkeypatch.setattr(tune_module, "space_of", space_of)
        monkeypatch.setattr(search_module, "_HINT", 1000.0)

    return limit


# -- spaces of the backends ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", BASELINES)
@pytest.mark.parametrize("cpus", [1, 2, 16])
def test_every_value_of_a_backend_s_space_is_an_option_it_has(backend, cpus, data):
    space = space_of(find_baseline(backend), cpus, {}, reorder=True)
    assert space.fixed == ()
    assert space.knobs
    for key, value, places in space.singles():
        knob = next(knob for knob in space.knobs if knob.key == key)
        changes = {**knob.needs, **space.changes(places), key: value}
        assert value != space.start[key]
        # Each single change passes the backend's own check, or it would never be tried.
        assert space.problem(changes) is None
        jobs_of(data / "m.yaml", overrides(changes), [backend])


def test_what_is_delivered_is_left_alone_unless_allowed():
    baseline = find_baseline("tfdata")
    untouched = ("shuffle.", "sampling.", "metadata.", "mix_block_length", "deterministic")
    keys = [knob.key for knob in space_of(baseline, 4, {}).knobs]
    assert not [key for key in keys if any(word in key for word in untouched)]
    more = [knob.key for knob in space_of(baseline, 4, {}, reorder=True).knobs]
    assert "tfdata.shuffle.global_buffer" in more


def test_options_that_were_given_stay_as_they_are():
    given = {"tfdata.mixing.parallelism_mode": "sqrt", "tfdata.tfds_read.cycle_length": 4}
    space = space_of(find_baseline("tfdata"), 4, given)
    keys = [knob.key for knob in space.knobs]
    assert space.fixed == (
        "tfdata.pipeline.emit_encoded_pairs",  # it would change parallelism_mode too
        "tfdata.mixing.parallelism_mode",
        "tfdata.tfds_read.cycle_length",
    )
    assert "tfdata.tfds_read.interleave_parallelism" in keys  # needs the length that was given
    # The check sees what was given: eight calls are too many for four shards.
    assert "tfds_read.cycle_length" in space.problem({"tfdata.tfds_read.interleave_parallelism": 8})


def test_a_value_brings_along_what_it_does_not_go_without():
    space = space_of(find_baseline("tfdata"), 4, {})
    [places] = [p for k, _, p in space.singles() if k == "tfdata.pipeline.emit_encoded_pairs"]
    changes = space.changes(places)
    assert changes["tfdata.pipeline.emit_encoded_pairs"] is False
    assert changes["tfdata.pipeline.post_mix_decode_resize"] is False


# -- searches ------------------------------------------------------------------------------------


def test_a_search_runs_is_written_and_resumes_without_repeating(data, tmp_path, only):
    if not find_spec("torch"):
        pytest.skip("torch is not installed")
    only("torch.prefetch_factor", 4)
    told = []
    study = asked(data, "torch", "torch.workers=0")
    first = tune(study, tmp_path / "t", tell=lambda *each: told.append(each))
    assert first.space.fixed == ("torch.workers",)
    assert [key for key, _ in option_rows(first)] == ["torch.prefetch_factor"]
    assert [title for title, _ in told] == ["search: defaults", "search: torch.prefetch_factor=4"]
    assert all(attempt.complete for _, attempt in told)
    assert first.made == first.found.runs == 2
    written = json.loads((tmp_path / "t" / "result.json").read_text())
    assert written["winner"] == overrides(first.found.winner) == []
    assert written["command"].startswith(f"headrace bench {data / 'm.yaml'} loader.batch_size=8")
    assert read_study(tmp_path / "t" / "tuned.yaml").backend == "torch"
    assert "## Decision" in (tmp_path / "t" / "log.md").read_text()
    again = tune(study, tmp_path / "t")
    assert (again.made, again.found) == (0, first.found)


def test_a_winner_is_proved_and_written_as_a_study(data, tmp_path, only, monkeypatch):
    key = find_baseline("headrace").knobs(2)[0].key  # workers
    only(key, 1)
    monkeypatch.setattr(search_module, "_HINT", 0.0)
    monkeypatch.setattr(search_module, "FINAL_ROUNDS", 1)
    study = asked(data, "headrace", "loader.keep_free=0")
    found = tune(study, tmp_path).found
    assert found.finalist == {key: 1}
    assert [len(row.attempts) for row in found.final] == [1, 1]
    log = (tmp_path / "log.md").read_text()
    assert f"| {key}=1 | complete |" in log
    winning = replace(found, ended="time", final=())
    tuned = tune_module.Tuned(tmp_path, None, winning, 0, "words", "headrace bench")
    (tmp_path / "tuned.yaml").write_text(tune_module._tuned_yaml(tuned, study))
    rows = read_study(tmp_path / "tuned.yaml").rows()
    assert [(row.label, row.own) for row in rows] == [
        ("defaults", ()),
        ("tuned", (f"{key}=1",)),
    ]


def test_headrace_is_checked_and_failures_are_rows(data, tmp_path, monkeypatch, capsys, only):
    monkeypatch.chdir(tmp_path)
    only("loader.memory", "1kB")  # which holds nothing
    command = ["tune", str(data / "m.yaml"), *FIXED, "loader.keep_free=0"]
    command += ["--seconds", "0.2", "--warmup", "2", "--min-available", "0", "--minutes", "10"]
    assert main([*command, "--json", "out.json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    [bad] = found["tried"]
    assert bad["changes"] == {"loader.memory": "1kB"}
    assert bad["attempt"]["status"] == "invalid configuration"
    assert bad["attempt"]["cause"]
    assert "loader.memory" in shown
    assert "tunes/m_headrace" in shown


def test_ctrl_c_keeps_the_best_so_far_and_says_how_to_resume(data, tmp_path):
    command = [sys.executable, "-m", "headrace", "tune", str(data / "m.yaml"), *FIXED]
    command += ["loader.keep_free=0", "--min-available", "0", "--seconds", "0.3", "--out", "t"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: list((tmp_path / "t").glob("runs/*/process")))  # a run is under way
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "headrace tune" in err
    assert "headrace bench" in out
    written = json.loads((tmp_path / "t" / "result.json").read_text())
    assert written["ended"] == "interrupted"
    assert (tmp_path / "t" / "tuned.yaml").exists()


def test_a_run_that_the_time_cuts_off_is_not_a_failure_and_not_remembered(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(tune_module, "_AROUND_S", 0.1)
    study = asked(data, "headrace", "loader.keep_free=0", steps=10_000_000)
    found = tune(study, tmp_path, minutes=0.1).found
    assert (found.ended, found.runs, found.start) == ("time", 0, None)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not (tmp_path / "ledger.jsonl").exists()


# -- mistakes ------------------------------------------------------------------------------------


def test_too_little_time_is_an_error_before_anything_runs(data, tmp_path):
    study = replace(asked(data, "headrace"), seconds=8.0, steps=None)
    with pytest.raises(UsageError, match="0.5 minutes .*--minutes"):
        tune(study, tmp_path / "t", minutes=0.5)
    assert not (tmp_path / "t" / "runs").exists()


def test_without_optuna_the_command_that_installs_it_is_named(data, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        tune_module, "find_spec", lambda name: None if name == "optuna" else real(name)
    )
    assert main(["tune", str(data / "m.yaml")]) == 2
    assert "pip install 'headrace[tune]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "tfdat"], "Did you mean 'tfdata'"),
        (["--minutes", "0"], "minutes is 0"),
        (["--min-available", "4000GiB"], "--min-available is 4000"),
        (["--backend", "torch", "torch.workrs=3"], "no option 'workrs'"),
        (
            ["--backend", "tfdata", "tfdata.tfds_read.interleave_parallelism=8"],
            "tfds_read.cycle_length to 8",
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
