"""The training program, end to end on tiny data: folder, resume after kill -9, ranks, bad ends."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("hydra")

import headrace.recipes.laq.program as program  # noqa: E402
from headrace.cli.main import main  # noqa: E402
from headrace.measure.runs import RunReader  # noqa: E402
from headrace.recipes.laq import LossWatch  # noqa: E402
from tests.recipes.laq.conftest import NAMES  # noqa: E402

#: The smallest model; a replacement at every checkpoint, where resuming could go wrong.
SMALL = [
    "model.image_size=32",
    "model.dim=32",
    "model.heads=2",
    "model.head_dim=16",
    "model.spatial_depth=1",
    "model.temporal_depth=1",
    "model.decoder_depth=1",
    "model.replacement=[[4,1000]]",
    "data.loader.batch_size=4",
    "data.loader.workers=0",
    "data.loader.keep_free=0",
    "training.warmup=2",
    # The rate does not depend on the number of steps, so runs of any length can be compared.
    "training.lr=1e-3",
    "training.min_lr=1e-3",
    "training.val_batches=1",
    "training.pictures=false",
    "training.limits=false",
    "logging.tensorboard=false",
]


@pytest.fixture
def words(mixture, tmp_path):
    """A command line with changes at its end."""

    def make(*changes):
        given = [f"data.mixture={mixture}", f"logging.runs={tmp_path / 'runs'}"]
        return ["train", "experiment=laq_debug", *SMALL, *given, *changes]

    return make


@pytest.fixture
def train(words, tmp_path, capsys):
    """Runs the command here: exit code, the newest run's folder, what was said."""

    def call(*changes):
        code = main(words(*changes))
        said = capsys.readouterr()
        runs = sorted((tmp_path / "runs").glob("*"))
        return code, runs[-1] if runs else None, said

    return call


def losses(run, column="train/loss"):
    with (run / "metrics.csv").open() as file:
        return {int(row["step"]): row[column] for row in csv.DictReader(file) if row[column]}


def result_of(run):
    return json.loads((run / "result.json").read_text())


def test_a_run_leaves_its_folder_result_profile_verdict_and_report(train):
    code, run, said = train(
        "training.steps=6",
        "training.val_every=3",
        "training.profiler=trace",
        "training.accumulate=2",
        "logging.print_every=2",
        "name=first",
    )
    assert code == 0, said.err
    assert run.name.endswith("_first")
    checkpoints = sorted(file.name for file in (run / "checkpoints").iterdir())
    assert checkpoints[0] == "last.ckpt"
    assert [name.split("-")[0] for name in checkpoints[1:]] == ["step=3", "step=6"]
    config = (run / "config.yaml").read_text()
    assert "dim: 32" in config
    assert "batch_size: 4" in config
    assert len(losses(run)) == 6  # every step, though values are logged every ten
    assert len(losses(run, "val/loss")) == 2
    result = result_of(run)
    assert result["status"] == "complete"
    assert result["steps"] == 6
    assert result["batches"] == 9  # of 12: but for those of the warm-up
    assert result["steps_per_s"] == pytest.approx(result["batches_per_s"] / 2)
    assert result["samples_per_s"] == pytest.approx(4 * result["batches_per_s"])
    assert result["best_val_loss"] == pytest.approx(
        min(map(float, losses(run, "val/loss").values()))
    )
    assert 0 <= result["loader_share"] <= 1
    assert {n: round(s["asked"], 3) for n, s in result["mixture"].items()} == dict.fromkeys(
        NAMES, 0.5
    )
    assert sum(share["served"] for share in result["mixture"].values()) == pytest.approx(1)
    profile = json.loads((run / "profiles" / "profile.json").read_text())
    assert profile["steps"] == 11
    assert sum(profile["shares"].values()) == pytest.approx(1)
    assert all(profile["seconds"][name] > 0 for name in profile["seconds"])
    line = next(line for line in said.out.splitlines() if line.startswith("profile of 11 steps: "))
    assert [word for word in line.split(": ")[1].split() if word.isalpha()] == list(
        profile["shares"]
    )
    assert (run / "profiles" / "profile.txt").read_text() == line + "\n"
    assert "traceEvents" in json.loads((run / "profiles" / "trace.json").read_text())
    verdict = (run / "doctor.txt").read_text()
    assert result["verdict"]["headline"] in verdict
    assert verdict in said.out
    log = (run / "train.log").read_text()
    assert "[Step 2] loss=" in log
    assert verdict in log
    assert "Run first" in (run / "report.html").read_text()
    assert main(["report", str(run)]) == 0
    assert main(["doctor", "--run", str(run)]) in (0, 1)


def test_a_short_run_validates_once_and_a_check_before_it_changes_nothing(train):
    few = ["training.steps=2", "training.val_every=150", "training.pictures=true"]
    code, plain, said = train(*few)
    assert code == 0, said.err
    code, checked, said = train(*few, "training.sanity_val_batches=1", "name=x_checked")
    assert code == 0, said.err
    for run in (plain, checked):
        assert len(losses(run, "val/loss")) == 1
        drawn = run / "visualizations" / "step_00000002"
        assert {"actions.png", "codebook.png"} <= {each.name for each in drawn.iterdir()}
    assert losses(plain) == losses(checked)
    assert losses(plain, "val/loss") == losses(checked, "val/loss")
    first = [each.name for each in (checked / "visualizations").glob("val_samples_step000000.*")]
    assert sorted(first) == ["val_samples_step000000.json", "val_samples_step000000.png"]
    assert not list((plain / "visualizations").glob("val_samples*"))


def test_a_source_without_a_validation_split_is_trained_on_and_not_validated(train):
    code, run, said = train(
        "training.steps=2", "training.pictures=true", f"data.sources.{NAMES[0]}.val_split=null"
    )
    assert code == 0, said.err
    assert (
        f"left out of validation, without a `val_split`: {NAMES[0]}"
        in (run / "train.log").read_text()
    )
    assert set(result_of(run)["mixture"]) == set(NAMES)
    drawn = (run / "visualizations" / "step_00000002" / "datasets").iterdir()
    assert [each.stem for each in drawn] == [NAMES[1]]


def test_after_kill_9_a_resumed_run_has_the_losses_of_the_uninterrupted_one(words, train, tmp_path):
    every = ["training.checkpoint_every=4", "training.val_every=4", "logging.print_every=1"]
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words("training.steps=100000", *every)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = []
    try:
        for line in child.stdout:
            lines.append(line)
            if line.startswith("[Step 6]"):
                break
    finally:
        child.send_signal(signal.SIGKILL)
        error = child.communicate()[1]
    assert any(line.startswith("[Step 6]") for line in lines), error
    (killed,) = (tmp_path / "runs").iterdir()
    assert not (killed / "result.json").exists()
    saved = torch.load(killed / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    code, run, said = train(f"training.steps={saved + 6}", "training.resume=auto", *every)
    assert code == 0, said.err
    assert run == killed  # it continues in its folder
    assert f"after step {saved}" in said.out
    code, whole, said = train(f"training.steps={saved + 6}", "name=whole", *every)
    assert code == 0, said.err
    assert whole != killed
    assert list(losses(run)) == list(range(saved + 6))
    assert losses(run) == losses(whole)  # to the last digit
    validated, expected = losses(run, "val/loss"), losses(whole, "val/loss")
    assert validated.items() <= expected.items()
    assert len(validated) >= 1
    assert result_of(run)["resumed_from"].endswith("last.ckpt")

    # It is complete now: asking again trains nothing, and a checkpoint by its name is a new run.
    code, _, said = train(f"training.steps={saved + 6}", "training.resume=auto")
    assert code == 0
    assert str(run) in said.out
    other = ["model.dim=64", "model.heads=4", f"training.resume={run}"]
    code, _, said = train(f"training.steps={saved + 8}", *other)
    assert code == 2
    assert "model.dim was 32, is 64; model.heads was 2, is 4" in said.err
    code, _, said = train(
        f"training.steps={saved + 8}", "training.lr=5e-3", f"training.resume={run}"
    )
    assert code == 2
    assert "training.lr was 0.001, is 0.005" in said.err
    assert "training.init_from=" in said.err
    before = (run / "result.json").read_text()
    code, _, said = train("data.defaults.offset=1", f"training.resume={run}")
    assert code == 2
    assert "offset" in said.err or "sequence" in said.err
    assert (run / "result.json").read_text() == before  # the run is as it was
    code, branch, said = train(
        f"training.steps={saved + 7}", "name=branch", f"training.resume={run}/checkpoints/last.ckpt"
    )
    assert code == 0, said.err
    assert branch not in (run, whole)
    assert list(losses(branch)) == [saved + 6]


def test_a_bad_loss_ends_the_run_and_names_the_file_with_its_samples(train, monkeypatch):
    real = LossWatch.watch

    def spoiled(self, step, batch, loss):
        real(self, step, batch, loss * float("nan") if step == 3 else loss)

    monkeypatch.setattr(LossWatch, "watch", spoiled)
    code, run, said = train("training.steps=6")
    assert code == 1
    result = result_of(run)
    assert result["status"] == "failed"
    assert result["provenance"] == str(run / "artifacts" / "nonfinite_step_3.json")
    assert result["provenance"] in said.err
    assert "step 3" in result["cause"]
    assert len(json.loads(Path(result["provenance"]).read_text())["samples"]) == 4


def test_ctrl_c_ends_after_the_step_with_a_checkpoint_and_says_how_to_resume(
    train, monkeypatch, tmp_path
):
    real = LossWatch.watch

    def pressed(self, step, batch, loss):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, step, batch, loss)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(LossWatch, "watch", pressed)
    code, run, said = train("training.steps=60", "training.ema=null")
    assert code == 130
    assert signal.getsignal(signal.SIGINT) is before
    result = result_of(run)
    assert (result["status"], result["steps"]) == ("interrupted", 3)
    assert result["verdict"]["headline"] in said.out
    assert f"training.resume={run}" in said.err
    monkeypatch.setattr(LossWatch, "watch", real)
    code, again, said = train("training.steps=5", f"training.resume={run}")
    assert code == 0, said.err
    assert again == run
    assert list(losses(run)) == [0, 1, 2, 3, 4]


def test_out_of_memory_says_which_batch_and_accumulation_to_try(train, monkeypatch):
    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(program.LaqTask, "training_step", full)
    code, run, said = train("training.steps=6", "training.accumulate=3")
    assert code == 1
    assert "data.loader.batch_size=2 training.accumulate=6" in said.err
    assert "12 samples" in said.err
    assert result_of(run)["status"] == "failed"
    assert "Traceback" in (run / "train.log").read_text()


def test_checkpoints_that_are_damaged_or_of_something_else_are_named(train, tmp_path):
    bad = tmp_path / "bad.ckpt"
    bad.write_bytes(b"PK\x03\x04 cut short")
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.ckpt")
    for key in ("resume", "init_from"):
        code, run, said = train(f"training.{key}={bad}")
        assert (code, run) == (2, None)
        assert f"training.{key}: {bad}" in said.err
        assert "other.ckpt" in said.err
    code, _, said = train(f"training.resume={tmp_path / 'other.ckpt'}")
    assert code == 2
    assert "'global_step'" in said.err


def test_what_lightning_or_the_data_refuse_is_reported_in_a_line(train, tmp_path):
    code, _, said = train("training.precision=bf17")
    assert code == 2
    assert "bf17" in said.err
    code, run, said = train("data.mixture=oxe29", f"data.root={tmp_path / 'none'}")
    assert code == 2
    assert "Traceback" not in said.err
    assert result_of(run)["status"] == "failed"
    if not torch.cuda.is_available():
        code, _, said = train("training.accelerator=cuda")
        assert code == 2
        assert "training.accelerator" in said.err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_run_on_a_gpu_has_its_use_in_result_metrics_and_verdict(train):
    words = ["training.steps=60", "training.accelerator=cuda", "training.peak_flops=1e15"]
    code, run, said = train(*words, "training.val_every=20", "logging.every=5")
    assert code == 0, said.err
    gpu = result_of(run)["gpu"]
    assert gpu["name"] == torch.cuda.get_device_name()
    assert 0 <= gpu["utilization_percent"]["p10"] <= gpu["utilization_percent"]["mean"] <= 100
    assert 0 < gpu["memory_peak_bytes"] <= gpu["memory_total_bytes"]
    assert 0 < gpu["mfu"] < 1
    assert all(float(value) > 0 for value in losses(run, "gpu/mfu").values())
    evidence = json.loads((run / "doctor.json").read_text())["evidence"]
    assert evidence["gpu"] == gpu
    assert f"GPU: {gpu['name']}" in (run / "doctor.txt").read_text()


def test_missing_teachers_are_named_and_trained_without(train):
    asked = ["model.features=dino", "model.dino_weights=/nowhere/dino.pt", "training.steps=1"]
    code, run, said = train(*asked)
    assert code == 0, said.err
    assert "note: dino_weights: " in said.out
    assert "/nowhere/dino.pt" in said.out
    assert result_of(run)["status"] == "complete"


def test_without_matplotlib_a_run_has_no_pictures_and_says_so(train, monkeypatch):
    monkeypatch.setattr("headrace.measure.theme.find_spec", lambda name: None)
    code, run, said = train("training.steps=2", "training.val_every=2", "training.pictures=true")
    assert code == 0, said.err
    assert "headrace[plots]" in said.out
    assert not list((run / "visualizations").iterdir())


def test_a_row_of_a_study_is_archived_where_the_study_says(words, tmp_path, monkeypatch):
    folder = tmp_path / "row"
    monkeypatch.setenv("HEADRACE_RUN", str(folder))
    assert main(words("training.steps=4")) == 0
    assert result_of(folder)["samples_per_s"] > 0
    assert RunReader(folder).figures()["stall_s_per_step"] is not None
    assert not (tmp_path / "runs").exists()


def test_a_run_can_start_with_the_weights_of_another(train):
    code, run, said = train("training.steps=3")
    assert code == 0, said.err
    file = run / "checkpoints" / "last.ckpt"
    code, other, said = train("training.steps=1", "training.lr=1e-9", "name=other",
                              "training.min_lr=0", f"training.init_from={file}")  # fmt: skip
    assert code == 0, said.err
    assert list(losses(other)) == [0]  # a run of its own, from its first step
    files = (file, other / "checkpoints" / "last.ckpt")
    first, second = (torch.load(each, weights_only=True)["state_dict"] for each in files)
    weights = {name: value for name, value in first.items() if isinstance(value, torch.Tensor)}
    assert all(torch.allclose(value, second[name], atol=1e-6) for name, value in weights.items())


RANKS = """
import hashlib, json, sys
from pathlib import Path
from headrace.recipes.training.compose import compose
from headrace.recipes.training.run_folder import RunFolder
import headrace.recipes.laq.program as program

kept = []
class Task(program.LaqTask):
    def training_step(self, batch, number):
        kept.append((self, batch["draws"].tolist()))
        return super().training_step(batch, number)

program.LaqTask = Task
composed = compose(sys.argv[2:])
options = composed.recipe.read(composed.experiment, composed.values)
ended = program.train(options, RunFolder(Path(options.runs), options.name, options.config()))
task = kept[0][0]
digest = hashlib.sha256()
for name, value in task.named_parameters():
    digest.update(name.encode() + value.detach().numpy().tobytes())
found = {"draws": [d for _, d in kept], "weights": digest.hexdigest(), "status": ended.status}
Path(sys.argv[1], f"rank{task.global_rank}.json").write_text(json.dumps(found))
"""


def test_two_ranks_have_disjoint_data_and_equal_weights_after_replacements(words, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SLURM_", "MASTER_")) and key not in ("RANK", "WORLD_SIZE")
    }
    command = words(
        "training.devices=2", "training.steps=6", "training.val_batches=0", "training.ema=0.9"
    )[1:]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{n}.json").read_text()) for n in range(2))
    assert first["status"] == second["status"] == "complete"
    assert first["weights"] == second["weights"]
    assert first["draws"] == [[*range(n, n + 4)] for n in range(0, 48, 8)]
    assert second["draws"] == [[*range(n + 4, n + 8)] for n in range(0, 48, 8)]
    (run,) = (tmp_path / "runs").iterdir()  # one folder, made by the first
    result = result_of(run)
    assert result["world"] == 2
    assert result["samples_per_s"] == pytest.approx(8 * result["batches_per_s"])
    assert done.stdout.count("archived in") == 1
