"""Callbacks: each alone, with and without a headrace loader; what they print, log and write."""

import json
import os
import shutil
import time
from collections import Counter

import pytest
import torch

import headrace as hr
from headrace.errors import UsageError
from tests.loader.conftest import spoil_frame
from tests.outputs.conftest import NAMES, OPTIONS, mixture_dict

pl = pytest.importorskip("lightning.pytorch")

from headrace.measure.machine import tree_memory  # noqa: E402
from headrace.measure.report import write_run_report  # noqa: E402
from headrace.measure.results import read_run  # noqa: E402
from headrace.measure.runs import RunReader  # noqa: E402
from headrace.outputs.lightning import (  # noqa: E402
    BatchMix,
    DatasetUsage,
    HeadraceDataModule,
    Memory,
    ProgressLine,
    Summary,
    Throughput,
    default_callbacks,
)
from headrace.outputs.lightning.callbacks import tree_anonymous  # noqa: E402
from headrace.outputs.torch import TorchLoader  # noqa: E402
from tests.outputs.lightning_runs import Model, every_step, trainer  # noqa: E402

#: Lightning warns of much that is meant so here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def records_of(path):
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def fit(tmp_path, mixture):
    """Trains for some steps with callbacks on a data module; the trainer and the model."""

    def run(callbacks, model=None, steps=6, **options):
        made = trainer(tmp_path, max_steps=steps, callbacks=callbacks, **options)
        model = model or Model()
        made.fit(model, HeadraceDataModule(mixture, **OPTIONS))
        return made, model

    return run


class Slow(Model):
    """Steps that take a known time at least."""

    seconds = 0.02

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return super().training_step(batch, batch_idx)


class Kept(pl.loggers.Logger):
    """Keeps what is logged."""

    name, version = "kept", 0

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass


def test_throughput_is_logged_over_each_interval_under_lightning_s_own_step(fit):
    logger = Kept()
    fit([Throughput(2)], Slow(), logger=logger, log_every_n_steps=1)
    rows = [(step, row) for step, row in logger.rows if "perf/steps_per_sec" in row]
    assert [step for step, _ in rows] == [1, 3, 5]
    for _, row in rows:
        assert set(row) == {"perf/samples_per_sec", "perf/steps_per_sec", "perf/data_wait_frac"}
        assert row["perf/samples_per_sec"] == pytest.approx(4 * row["perf/steps_per_sec"])
        assert 0 < row["perf/steps_per_sec"] < 1 / Slow.seconds
        assert 0 <= row["perf/data_wait_frac"] < 1
    losses = [step for step, row in logger.rows if "train/loss" in row]
    assert losses == [0, 1, 2, 3, 4, 5]


def test_waiting_is_what_the_loader_measured(fit, monkeypatch):
    original = TorchLoader._next

    def late(self):  # as if each batch had been waited for for an hour
        self.waited_s += 3600
        return original(self)

    monkeypatch.setattr(TorchLoader, "_next", late)
    made, _ = fit([Throughput(6)])
    assert made.callback_metrics["perf/data_wait_frac"] > 0.99


def test_validation_does_not_count_as_training_time(fit, monkeypatch):
    later = 0.0

    class Validating(Slow):
        def validation_step(self, batch, batch_idx):
            nonlocal later
            later += 3600

    monkeypatch.setattr("headrace.measure.clock.perf_counter", lambda: time.perf_counter() + later)
    made, _ = fit(
        [Throughput(6)], Validating(), val_check_interval=2, limit_val_batches=1, logger=False
    )
    assert later >= 2 * 3600
    assert made.callback_metrics["perf/steps_per_sec"] > 6 / 3600


def test_dataset_usage_says_what_was_given_and_requested(fit, capsys):
    logger = Kept()

    served = Counter()

    class Counting(Model):
        def training_step(self, batch, batch_idx):
            served.update(batch["names"][i] for i in batch["dataset"].tolist())
            return super().training_step(batch, batch_idx)

    fit([DatasetUsage(3)], Counting(), logger=logger)
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("[DatasetUsage]")]
    assert [line.split()[1:3] for line in lines[:2]] == [
        ["step=3", "interval_total=12"],
        ["step=6", "interval_total=12"],
    ]
    said = Counter()
    for line in lines[:2]:
        for name, _ in (part.split("=") for part in line.split()[3:] if "=" in part):
            said[name] += int(line.split(f" {name}=")[1].split()[0])
    assert said == served
    assert lines[2].startswith("[DatasetUsage] total=24 ")
    assert "(requested 33.33%)" in lines[2]
    rows = [row for _, row in logger.rows if "usage/actual/bridge" in row]
    assert len(rows) == 2
    for row in rows:
        for kind in ("actual", "requested"):
            assert sum(row[f"usage/{kind}/{name}"] for name in NAMES) == pytest.approx(1)


def test_the_total_of_a_resumed_run_says_since_when(tmp_path, mixture, capsys):
    made = trainer(tmp_path, max_steps=2)
    made.fit(Model(), HeadraceDataModule(mixture, **OPTIONS))
    made.save_checkpoint(tmp_path / "two.ckpt")
    trainer(tmp_path, max_steps=5, callbacks=[DatasetUsage(5)]).fit(
        Model(), HeadraceDataModule(mixture, **OPTIONS), ckpt_path=tmp_path / "two.ckpt"
    )
    assert "[DatasetUsage] total=12 since step 2 " in capsys.readouterr().out


def test_damaged_frames_that_were_passed_over_are_listed_in_the_run_folder(tmp_path, data, capsys):
    shutil.copytree(data / "bridge", tmp_path / "data" / "bridge")
    _, t, where = spoil_frame(tmp_path / "data")
    mixture = hr.Mixture.from_dict(mixture_dict(tmp_path / "data")).only("bridge")
    trainer(tmp_path, max_steps=20, callbacks=[BatchMix(tmp_path)]).fit(
        Model(), HeadraceDataModule(mixture, on_error="skip", **OPTIONS)
    )
    assert f"verify --from {tmp_path} --quarantine" in capsys.readouterr().out
    (one,) = RunReader(tmp_path).damaged_frames
    assert (one["dataset"], one["file"], one["offset"]) == ("bridge", where.path, where.offset)
    assert one["frame"] == t


def test_batch_mix_writes_records_that_the_report_draws(fit, tmp_path):
    fit([BatchMix(tmp_path / "run", warmup=2)], Slow())
    records = records_of(tmp_path / "run" / "batch_times.jsonl")
    assert [record["idx"] for record in records] == [*range(6)]
    assert [record["is_warmup"] for record in records] == [True, True] + 4 * [False]
    for record in records:
        assert record["samples"] == sum(record["dataset_counts"].values()) == 4
        counts = record["dataset_counts"]
        assert counts[record["dominant_dataset"]] == max(counts.values())
        assert record["dt_s"] >= Slow.seconds
        assert 0 <= record["fetch_dt_s"] <= record["dt_s"]
    assert [r["t_s"] for r in records] == sorted(r["t_s"] for r in records)
    page = write_run_report(tmp_path / "run").read_text()
    assert "bridge" in page
    assert (tmp_path / "run" / "mixture_over_time.svg").exists()
    summary = (tmp_path / "run" / "mixture_summary.txt").read_text()
    assert "measured_batches" in summary


def test_a_resumed_run_continues_the_file_and_repeats_no_record(tmp_path, mixture):
    options = every_step(tmp_path)
    options["callbacks"] += [BatchMix(tmp_path), Memory(1, folder=tmp_path)]
    trainer(tmp_path, max_steps=5, **options).fit(Model(), HeadraceDataModule(mixture, **OPTIONS))
    with (tmp_path / "batch_times.jsonl").open("a") as file:
        file.write('{"idx": 5, "half')  # killed while it wrote
    looks = len(records_of(tmp_path / "memory.jsonl"))
    callbacks = [BatchMix(tmp_path), Memory(1, folder=tmp_path)]
    trainer(tmp_path, max_steps=7, callbacks=callbacks).fit(
        Model(),
        HeadraceDataModule(mixture, **OPTIONS),
        ckpt_path=tmp_path / "checkpoints" / "step=3.ckpt",
    )
    records = records_of(tmp_path / "batch_times.jsonl")
    assert [record["idx"] for record in records] == [*range(7)]
    assert [r["t_s"] for r in records] == sorted(r["t_s"] for r in records)
    times = [record["t_s"] for record in records_of(tmp_path / "memory.jsonl")]
    assert len(times) > looks
    assert times == sorted(times)
    trainer(tmp_path, max_steps=2, callbacks=[BatchMix(tmp_path)]).fit(
        Model(), HeadraceDataModule(mixture, **OPTIONS)
    )
    assert len((tmp_path / "batch_times.jsonl").read_text().splitlines()) == 2  # a new run


def test_records_survive_a_step_that_fails(fit, tmp_path):
    with pytest.raises(RuntimeError, match="the step failed"):
        fit([BatchMix(tmp_path)], Model(fail_at=3))
    assert len((tmp_path / "batch_times.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("callback", [BatchMix, lambda folder: Memory(folder=folder)])
def test_a_folder_that_cannot_be_written_is_named(fit, tmp_path, callback):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/run"):
        fit([callback(tmp_path / "file" / "run")])


def test_the_progress_line_has_step_loss_lr_and_epoch(fit, capsys):
    made, _ = fit([ProgressLine(3)])
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("[Step")]
    assert len(lines) == 2
    loss = float(made.callback_metrics["train/loss"])
    assert lines[1] == f"[Step 6] loss={loss:.4f} lr=0.1 epoch=0"


def test_the_progress_line_goes_above_a_progress_bar(fit, capsys):
    fit([ProgressLine(3)], enable_progress_bar=True)
    assert "[Step 3] loss=" in capsys.readouterr().out


def test_memory_is_that_of_the_process_tree_and_the_budget_the_loader_s(fit, tmp_path, capsys):
    made, _ = fit([Memory(2, folder=tmp_path)])
    metrics = {name: float(value) for name, value in made.callback_metrics.items()}
    assert metrics["memory/anonymous_mb"] > 20
    assert 0 < metrics["memory/budget_held_mb"] <= metrics["memory/budget_mb"]
    assert 0 < metrics["memory/available_min_mb"] <= metrics["memory/available_mb"]
    records = records_of(tmp_path / "memory.jsonl")
    assert len(records) >= 3
    least = min(record["available_mb"] for record in records)
    assert f"available={least:,.0f} MB at least" in capsys.readouterr().out


def test_the_summary_says_how_fast_it_was_and_the_report_that_it_ended(fit, tmp_path, capsys):
    fit([*default_callbacks(tmp_path)], Slow(), steps=12)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "[Summary]" in x)
    result = json.loads((tmp_path / "result.json").read_text())
    assert line == (
        f"[Summary] complete: 12 steps, {result['samples_per_s']:,.0f} samples/s, "
        f"waiting for data {result['loader_share']:.1%} of the time"
    )
    assert 0 < result["samples_per_s"] <= OPTIONS["batch_size"] / Slow.seconds
    assert 0 <= result["loader_share"] < 1
    assert result["status"] == "complete"
    assert "Incomplete" not in write_run_report(tmp_path).read_text()
    run = read_run(tmp_path)
    assert {name: share.requested for name, share in run.mixture.items()} == pytest.approx(
        dict.fromkeys(NAMES, 1 / 3), abs=1e-4
    )
    held = [record["anon_mb"] for record in records_of(tmp_path / "memory.jsonl")]
    assert run.numbers["peak_anon_mb"] == max(held)


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (KeyboardInterrupt(), "interrupted", "stopped at step 3"),
        (ValueError("no"), "failed", "ValueError: no"),
    ],
)
def test_a_run_that_ends_early_says_so_and_one_that_continues_has_not_ended(
    fit, tmp_path, error, status, cause
):
    class Ends(Model):
        def training_step(self, batch, batch_idx):
            assert not (tmp_path / "result.json").exists()
            if self.global_step == 3:
                raise error
            return super().training_step(batch, batch_idx)

    for _ in range(2):  # the second begins with the first one's result.json
        with pytest.raises((SystemExit, KeyboardInterrupt, ValueError)):
            fit([Summary(tmp_path)], Ends())
        result = json.loads((tmp_path / "result.json").read_text())
        assert (result["status"], result["cause"], result["steps"]) == (status, cause, 3)


def test_a_finished_run_that_has_nothing_left_to_train_keeps_its_result(tmp_path, mixture):
    options = {"max_steps": 3, "callbacks": [Summary(tmp_path)]}
    made = trainer(tmp_path, **options)
    made.fit(Model(), HeadraceDataModule(mixture, **OPTIONS))
    made.save_checkpoint(tmp_path / "last.ckpt")
    result = (tmp_path / "result.json").read_text()
    again = trainer(tmp_path, **options)
    again.fit(Model(), HeadraceDataModule(mixture, **OPTIONS), ckpt_path=tmp_path / "last.ckpt")
    assert "samples_per_s" in json.loads(result)
    assert (tmp_path / "result.json").read_text() == result


def test_the_summary_leaves_the_result_of_another_program_as_it_is(fit, tmp_path, capsys):
    (tmp_path / "result.json").write_text('{"program": "train"}')
    fit([Summary(tmp_path)], steps=2)
    assert (tmp_path / "result.json").read_text() == '{"program": "train"}'
    assert "[Summary] complete: 2 steps" in capsys.readouterr().out


def test_the_cheap_figure_of_memory_agrees_with_the_pages(mixture):
    with hr.Loader(mixture, **OPTIONS) as loader:
        for _ in range(20):
            next(loader)
        exact, cheap = tree_memory(os.getpid()).anonymous, tree_anonymous(os.getpid())
    assert cheap == pytest.approx(exact, rel=0.15)


def test_callbacks_find_a_loader_that_was_given_without_a_data_module(tmp_path, mixture):
    with TorchLoader(mixture, steps_per_epoch=4, **OPTIONS) as loader:
        made = trainer(tmp_path, max_epochs=1, callbacks=default_callbacks(every_n_steps=2))
        made.fit(Model(), loader)
    assert {"perf/data_wait_frac", "usage/requested/kuka", "memory/budget_mb"} <= set(
        made.callback_metrics
    )


def test_with_other_loaders_callbacks_say_what_can_be_known(tmp_path, capsys):
    class Other(Model):
        def training_step(self, batch, batch_idx):
            return (self.weight - batch[0].mean()) ** 2

    rows = torch.utils.data.TensorDataset(torch.zeros(12, 3))
    made = trainer(tmp_path, max_epochs=1, callbacks=default_callbacks(every_n_steps=2))
    made.fit(Other(), torch.utils.data.DataLoader(rows, batch_size=3))
    metrics = made.callback_metrics
    assert metrics["perf/samples_per_sec"] == pytest.approx(3 * metrics["perf/steps_per_sec"])
    assert not [name for name in metrics if "wait" in name or "usage" in name or "budget" in name]
    record = json.loads((tmp_path / "batch_times.jsonl").read_text().splitlines()[0])
    assert (record["samples"], record["fetch_dt_s"], record["dataset_counts"]) == (3, None, {})
    assert "[DatasetUsage]" not in capsys.readouterr().out


def test_without_an_interval_callbacks_report_as_often_as_the_trainer(fit, capsys):
    fit([ProgressLine()], log_every_n_steps=2)
    assert capsys.readouterr().out.count("[Step") == 3


def test_an_interval_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="every_n_steps is 0"):
        Throughput(0)
