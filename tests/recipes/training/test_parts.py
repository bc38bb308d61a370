"""The parts of a training run alone: folders, metrics, profile, loggers, explained failures."""

import errno
import json
import logging
import os
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from headrace.errors import UsageError  # noqa: E402
from headrace.recipes.training.checkpoints import AtomicCheckpoints  # noqa: E402
from headrace.recipes.training.devices import explain_failure  # noqa: E402
from headrace.recipes.training.loggers import (  # noqa: E402
    MetricsFile,
    WandbChoice,
    tensorboard_logger,
    wandb_logger,
    wandb_mode,
)
from headrace.recipes.training.profile import StepProfile  # noqa: E402
from headrace.recipes.training.run_folder import (  # noqa: E402
    Resume,
    RunFolder,
    find_resume,
    tee_output,
)

# -- folders -----------------------------------------------------------------------------------


def begin(runs, config, continued=None):
    """A run that has begun."""
    resume = (
        None if continued is None else Resume(continued / "checkpoints" / "last.ckpt", continued)
    )
    run = RunFolder(runs, "laq", config, resume)
    run.begin()
    return run


def begun(runs, stamp, name, *, checkpoint=True):
    folder = runs / f"{stamp}_{name}"
    (folder / "checkpoints").mkdir(parents=True)
    if checkpoint:
        (folder / "checkpoints" / "last.ckpt").touch()
    return folder


def test_auto_resume_takes_the_newest_run_of_the_experiment_that_has_a_checkpoint(tmp_path):
    assert find_resume("auto", tmp_path / "none", "laq") is None
    begun(tmp_path, "2026-01-01_00-00-00", "laq")
    newest = begun(tmp_path, "2026-01-02_00-00-00", "laq_2")
    begun(tmp_path, "2026-01-03_00-00-00", "laq", checkpoint=False)
    begun(tmp_path, "2026-01-04_00-00-00", "laq_small")
    found = find_resume("auto", tmp_path, "laq")
    assert found.folder == newest
    assert found.checkpoint == newest / "checkpoints" / "last.ckpt"


def test_a_folder_is_continued_and_a_checkpoint_begins_a_new_run(tmp_path):
    folder = begun(tmp_path, "2026-01-01_00-00-00", "laq")
    assert find_resume(str(folder), tmp_path, "x").folder == folder
    file = folder / "checkpoints" / "last.ckpt"
    assert find_resume(str(file), tmp_path, "x").folder is None
    file.rename(file.with_name("step=3.ckpt"))
    with pytest.raises(UsageError, match=r"last\.ckpt.*step=3\.ckpt"):
        find_resume(str(folder), tmp_path, "x")


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_starts(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"logging\.runs="):
        begin(tmp_path / "file", {})
    monkeypatch.setenv("HEADRACE_RUN", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=str(tmp_path / "file")):
        begin(tmp_path, {})


def test_a_resumed_run_keeps_the_config_it_began_with(tmp_path):
    first = begin(tmp_path, {"steps": 1})
    again = begin(tmp_path, {"steps": 1}, first.path)
    assert not list(again.artifacts.glob("config*"))
    begin(tmp_path, {"steps": 2}, first.path)
    assert (first.path / "config.yaml").read_text() == "steps: 2\n"
    assert (first.artifacts / "config_before_1.yaml").read_text() == "steps: 1\n"


def test_a_resumed_run_has_the_job_it_continues_in_and_keeps_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    first = begin(tmp_path, {})
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    begin(tmp_path, {}, first.path)
    files = (first.artifacts / "machine_before_1.json", first.path / "machine.json")
    jobs = [json.loads(file.read_text())["slurm"]["job_id"] for file in files]
    assert jobs == ["41", "42"]


def test_ranks_other_than_the_first_make_no_folder(tmp_path, monkeypatch):
    for key, value in {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():  # as Lightning does
        monkeypatch.setenv(key, value)
    assert not begin(tmp_path, {}).first
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path):
    file = tmp_path / "last.ckpt"
    AtomicCheckpoints().save_checkpoint({"a": torch.zeros(3)}, file)
    before = file.read_bytes()

    class Full:
        def __reduce__(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpoints().save_checkpoint({"a": torch.zeros(3), "b": Full()}, file)
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


# -- metrics -----------------------------------------------------------------------------------


def test_metrics_of_a_step_are_one_row_and_a_resumed_run_continues(tmp_path):
    metrics = MetricsFile(tmp_path)
    metrics.log_metrics({"loss": 1.0, "epoch": 0}, 0)
    metrics.log_metrics({"loss": 0.5}, 1)
    metrics.save()
    metrics.log_metrics({"val": 3.0}, 1)
    metrics.log_metrics({"loss": 0.25}, 2)
    metrics.finalize("success")
    assert (tmp_path / "metrics.csv").read_text().split() == [
        "step,loss,val",
        "0,1.0,",
        "1,0.5,3.0",
        "2,0.25,",
    ]
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("3,0.1")  # killed while it wrote
    again = MetricsFile(tmp_path, first_step=2)
    again.log_metrics({"loss": 9.0}, 2)
    again.finalize("success")
    assert (tmp_path / "metrics.csv").read_text().split() == [
        "step,loss,val",
        "0,1.0,",
        "1,0.5,3.0",
        "2,9.0,",
    ]


# -- profile -----------------------------------------------------------------------------------


class Clock:
    """A device that has passed every mark up to `done`."""

    def __init__(self):
        self.now, self.done = 0.0, float("inf")

    def mark(self):
        return self.now

    def passed(self, mark):
        return mark <= self.done

    def seconds(self, first, second):
        return second - first


class Loader:
    waited_s = 0.0


def test_the_profile_divides_the_time_between_steps_into_waiting_and_other():
    clock, loader = Clock(), Loader()
    profile = StepProfile(None, lambda: loader.waited_s)
    profile._clock = clock
    profile.on_train_batch_end(None, None, None, None, 0)  # the first is not counted

    def step(gap, waited, validation=0.0, saving=0.0):
        clock.now += gap
        loader.waited_s += waited
        profile.on_train_batch_start(None, None, None, 0)
        clock.now += 3
        profile.on_before_backward(None, None, None)
        clock.now += 5
        profile.on_after_backward(None, None)
        clock.now += 1
        profile.on_train_batch_end(None, None, None, None, 0)
        if validation:
            profile.on_validation_start(None, None)
            clock.now += validation
            profile.on_validation_end(None, None)
        with profile.saving():
            clock.now += saving

    step(gap=1, waited=0.5)
    clock.done = clock.now - 2  # the device lags behind: nothing is lost
    step(gap=1, waited=4)  # a wait that queued work has covered counts as far as the device idled
    step(gap=1, waited=0, validation=7, saving=2)
    profile._settle(wait=True)
    assert profile.steps == 3
    assert profile._seconds == {
        "dataloader": 1.5,
        "forward": 9,
        "backward": 15,
        "optimizer": 3,
        "validation": 7,
        "checkpoint": 2,
        "other": 1.5,
    }
    assert "dataloader 3.8%  forward 23.1%  backward 38.5%  optimizer 7.7%" in profile.line
    assert "validation 17.9%  checkpoint 5.1%  other 3.8%" in profile.line


# -- loggers -----------------------------------------------------------------------------------


def test_wandb_is_offline_without_a_key_or_a_network(tmp_path):
    def never(host):
        raise AssertionError("no network is needed to know this")

    home = {"HOME": str(tmp_path)}
    assert wandb_mode("offline", {}, never)[0] == "offline"
    assert wandb_mode(None, {**home, "WANDB_MODE": "disabled"}, never)[0] == "disabled"
    assert wandb_mode(None, home, never)[0] == "offline"
    key = {**home, "WANDB_API_KEY": "k"}
    assert wandb_mode(None, key, lambda host: host == "api.wandb.ai")[0] == "online"
    own = {**key, "WANDB_BASE_URL": "http://wandb.lab:8080/x"}
    mode, why = wandb_mode(None, own, lambda host: host != "wandb.lab:8080")
    assert mode == "offline"
    assert "wandb.lab:8080" in why
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_mode(None, home, lambda host: True)[0] == "online"


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_logger_that_is_not_installed_is_a_message(package, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.recipes.training.loggers.find_spec", lambda name: None)
    said = []
    if package == "wandb":
        found = wandb_logger(WandbChoice("p", "n"), tmp_path, {}, said.append)
    else:
        found = tensorboard_logger(tmp_path, said.append)
    assert found is None
    assert f"pip install {package}" in said[0]


def test_tensorboard_writes_events_without_tensorflow(tmp_path):
    pytest.importorskip("tensorboard")
    logger = tensorboard_logger(tmp_path, print)
    logger.log_metrics({"train/loss": 1.0}, 3)
    logger.finalize("success")
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_what_is_printed_is_logged_too_and_warnings_are_only_logged(tmp_path, capsys):
    log = tmp_path / "train.log"
    with tee_output(log):
        print("a line")
        warnings.warn("a remark", stacklevel=1)
        logging.getLogger("lightning.pytorch").warning("another")
    print("after")
    said = capsys.readouterr()
    assert said.out == "a line\nafter\n"
    assert "remark" not in said.err
    text = log.read_text()
    assert "a line\n" in text
    assert "a remark" in text
    assert "lightning.pytorch: another" in text
    assert "after" not in text


# -- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "accumulate", "words"),
    [
        (128, 1, "data.loader.batch_size=64 training.accumulate=2"),
        (9, 2, "data.loader.batch_size=3 training.accumulate=6"),
        (7, 1, "data.loader.batch_size=1 training.accumulate=7"),
        (1, 4, "model=small"),
    ],
)
def test_out_of_memory_suggests_what_keeps_the_effective_batch(batch, accumulate, words):
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. GPU 0 ...")
    found = explain_failure(error, batch_size=batch, accumulate=accumulate, checkpoint=Path("none"))
    assert words in str(found)
    assert "GPU 0" not in str(found)


def test_a_full_disk_is_named_and_a_bug_is_not_explained_away(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "last.ckpt"))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text(json.dumps({}))
    found = explain_failure(full, batch_size=1, accumulate=1, checkpoint=checkpoint)
    assert f"No space left on device [file {tmp_path / 'last.ckpt'}]" in str(found)
    assert "training.resume=auto" in str(found)
    bug = RuntimeError("shapes")
    assert explain_failure(bug, batch_size=1, accumulate=1, checkpoint=checkpoint) is None
