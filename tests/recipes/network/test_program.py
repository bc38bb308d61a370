"""`headrace train` on network measurements: folder, resume, interruption, refusals."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytest.importorskip("hydra")

from headrace.cli.main import main
from headrace.recipes.training.run_folder import read_rows

SMALL = [
    "experiment=network_debug",
    *("data.loader.batch_size=2", "data.loader.workers=0", "data.synth.files=1"),
    *("data.synth.rows=512", "model.depth=1", "model.dim=16", "model.heads=1", "model.inner=16"),
    *("training.steps=6", "training.checkpoint_every=2", "logging.print_every=1"),
]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def losses(folder):
    return {row["step"]: row["train/loss"] for row in read_rows(folder / "metrics.csv")}


def test_a_run_leaves_its_config_losses_records_checkpoint_and_result(runs, capsys):
    assert main(["train", *SMALL, "training.examine=2", "training.peak_flops=1e12"]) == 0
    (run,) = runs.iterdir()
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["steps"], result["samples"] > 0) == ("complete", 6, True)
    assert result["train_loss"] == pytest.approx(losses(run)[6])
    assert 0 < result["mfu"] < 1
    assert result["examination"]["mfu"] > 0
    assert len((run / "batch_times.jsonl").read_text().splitlines()) == 6
    assert {"config.yaml", "train.log", "report.html"} <= {path.name for path in run.iterdir()}
    assert "could 15% MFU be the data?" in capsys.readouterr().out


def test_after_kill_9_a_resumed_run_has_the_losses_of_the_uninterrupted_one(runs):
    assert main(["train", *SMALL, "name=whole"]) == 0
    program = (
        "import os, signal, sys; import headrace.recipes.network.program as program\n"
        "write = program._write_checkpoint\n"
        "def once(path, state, *rest):\n"
        "    write(path, state, *rest)\n"
        "    if int(state.step) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "program._write_checkpoint = once\n"
        "from headrace.cli.main import main; main(sys.argv[1:])"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, "train", *SMALL, "name=killed"], env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL
    assert main(["train", *SMALL, "name=killed", "training.resume=auto"]) == 0
    whole, resumed = (next(runs.glob(f"*_{name}")) for name in ("whole", "killed"))
    assert losses(resumed) == losses(whole)
    assert len(losses(whole)) == 6
    assert len((resumed / "batch_times.jsonl").read_text().splitlines()) == 6


def test_an_interrupted_run_has_a_checkpoint_and_says_how_to_resume(runs, capsys, monkeypatch):
    from headrace.recipes.network import program

    made = program.make_step

    def stopping(config, training):
        step = made(config, training)

        def once(state, batch):
            os.kill(os.getpid(), signal.SIGINT)
            return step(state, batch)

        return once

    monkeypatch.setattr(program, "make_step", stopping)
    assert main(["train", *SMALL]) == 130
    (run,) = runs.iterdir()
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("interrupted", 1)
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert f"training.resume={run}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("data.root=nowhere", "data.root"),
        ("model.preset=huge", "model.preset"),
        ("training.warmup=-1", "training"),
        ("training.resume=nowhere.ckpt", "training.resume"),
        ("data.loader.threads=2", "data.loader.threads"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(runs, capsys, word, named):
    assert main(["train", *SMALL, word]) == 2
    assert named in capsys.readouterr().err
    assert not runs.exists()


def test_a_checkpoint_of_another_model_is_refused(runs, capsys):
    assert main(["train", *SMALL]) == 0
    (run,) = runs.iterdir()
    assert main(["train", *SMALL, "model.depth=2", f"training.resume={run}"]) == 2
    assert "depth=1" in capsys.readouterr().err
