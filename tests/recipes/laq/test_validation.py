"""Pictures and numbers of a validation, and what they must leave alone."""

import json
import logging
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
pytest.importorskip("matplotlib")
from lightning.pytorch.loggers import CSVLogger, Logger  # noqa: E402

from headrace.errors import UsageError  # noqa: E402
from headrace.recipes.laq import progress_strip  # noqa: E402
from headrace.recipes.laq.ema import Ema  # noqa: E402
from headrace.recipes.laq.model import LaqOutput  # noqa: E402
from headrace.recipes.laq.pictures import step_folders  # noqa: E402
from headrace.recipes.laq.validation import FrameErrors, ValidationPictures  # noqa: E402
from headrace.recipes.training.run_folder import read_rows, write_rows  # noqa: E402
from tests.recipes.laq.runs import Losses, Seeded, loader, task, trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # lightning's advice on workers and the like

SHEETS = {"reconstruction", "transfer", "codebook", "sequences", "actions"}
SHEETS |= {f"datasets/{name}" for name in "abc"}


class TakesNumbers(Logger):
    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.numbers = {}
        self.images = {}

    def log_hyperparams(self, *_, **__):
        pass

    def log_metrics(self, metrics, step=None):
        self.numbers.setdefault(step, {}).update(metrics)


class LikeTensorBoard(TakesNumbers):
    """Takes pictures by its writer's `add_image`."""

    @property
    def experiment(self):
        return SimpleNamespace(add_image=self._add)

    def _add(self, tag, image, global_step, dataformats):
        assert dataformats == "HWC"
        self.images.setdefault(global_step, {})[tag] = image


class LikeWandb(TakesNumbers):
    """Takes pictures by its own `log_image`."""

    def log_image(self, key, images, step=None):
        (image,) = images
        self.images.setdefault(step, {})[key] = image


def files(folder):
    return {str(p.relative_to(folder)).removesuffix(".png") for p in folder.rglob("*.png")}


def image(path):
    return cv2.imread(str(path))[..., ::-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps with a validation after every second one."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    board, wandb, csv = LikeTensorBoard(), LikeWandb(), CSVLogger(folder)
    pictures = ValidationPictures(folder / "pictures")
    fit = trainer(folder, 4, [pictures], logger=[board, wandb, csv], num_sanity_val_steps=1)
    fit.fit(task(), loader(4), loader(2, seed=1))
    return SimpleNamespace(folder=folder / "pictures", board=board, wandb=wandb, csv=csv, fit=fit)


def test_every_validation_leaves_readable_pictures(run):
    assert [step for step, _ in step_folders(run.folder)] == [2, 4]
    for _, folder in step_folders(run.folder):
        assert files(folder) == SHEETS | {"samples"}
        for path in folder.rglob("*.png"):
            assert image(path).std() > 1


def test_the_check_before_the_first_step_leaves_its_samples_and_their_origin(run):
    assert image(run.folder / "val_samples_step000000.png").std() > 1
    found = json.loads((run.folder / "val_samples_step000000.json").read_text())
    assert found["step"] == 0
    assert {"val/loss", "val/recon_mse", "val/codebook_entropy"} <= set(found["metrics"])
    assert [sample["dataset"] for sample in found["samples"]] == ["a", "b", "c"] * 2
    assert [sample["draw"] for sample in found["samples"]] == [*range(6)]  # of the one batch
    assert all(len(sample["codes"]) == 4 for sample in found["samples"])


def test_loggers_that_take_pictures_get_the_same_and_the_others_numbers(run):
    for logger in (run.board, run.wandb):
        assert set(logger.images) == {1, 3}  # Lightning counts from 0, files from 1
        assert set(logger.images[3]) == {f"val/{name}" for name in SHEETS}
        for name in SHEETS:
            written = image(run.folder / "step_00000004" / f"{name}.png")
            assert np.array_equal(logger.images[3][f"val/{name}"], written)
        assert logger.numbers[3]["val/copy_mse"] > 0
    names = (run.folder.parent / "lightning_logs/version_0/metrics.csv").read_text().split("\n")[0]
    assert {"val/recon_mse", "val/transfer_ratio", "val/recon_mse/a"} <= set(names.split(","))


def test_the_numbers_are_overall_and_of_every_dataset(run):
    numbers = run.board.numbers[3]
    overall = {"recon_mse", "copy_mse", "transfer_mse", "self_mse", "transfer_ratio"}
    overall |= {"codebook_utilisation", "codebook_entropy", "sequences", "sequence_entropy"}
    assert {f"val/{name}" for name in overall | {"feature_transfer_ratio", "loss"}} <= set(numbers)
    for kind in ("recon_mse", "copy_mse"):  # as many samples of each dataset
        each = [numbers[f"val/{kind}/{name}"] for name in "abc"]
        assert np.mean(each) == pytest.approx(numbers[f"val/{kind}"], rel=1e-4)
    assert numbers["val/aux_loss"] == pytest.approx(numbers["val/recon_mse"], rel=1e-4)
    assert 1 <= numbers["val/sequences"] <= 12
    rows = read_rows(run.folder / "metrics.csv")
    assert [row["step"] for row in rows] == [2, 4]
    assert rows[1]["val/loss"] == pytest.approx(numbers["val/loss"], rel=1e-4)
    assert rows[1]["train/loss"] > 0


def test_the_curve_of_a_run_that_was_stopped_has_the_steps_before_too(tmp_path):
    before, after, whole = (ValidationPictures(tmp_path) for _ in range(3))
    losses = [torch.tensor(x) for x in (0.7, 0.1, 0.35)]
    for callback, some in ((before, losses[:2]), (whole, losses)):
        for loss in some:
            callback.on_train_batch_end(None, None, {"loss": loss}, None, 0)
    after.load_state_dict(before.state_dict())
    after.on_train_batch_end(None, None, {"loss": losses[2]}, None, 0)
    assert after.state_dict() == whole.state_dict()
    assert whole.state_dict()["train_steps"] == 3
    after.load_state_dict(ValidationPictures(tmp_path).state_dict())
    assert after.state_dict() == {"train_loss": None, "train_steps": 0}


def test_the_same_samples_are_shown_every_time(run):
    first, second = (image(path / "samples.png") for _, path in step_folders(run.folder))
    assert first.shape == second.shape == (6 * 32 + 2 * 32, 3 * 32, 3)  # eight of three datasets
    assert np.array_equal(first[:, :64], second[:, :64])
    assert not np.array_equal(first[:, 64:], second[:, 64:])


def test_the_course_of_a_run_is_drawn_from_its_folder(run, tmp_path):
    strip = image(run.folder / "progress.png")
    again = progress_strip(run.folder, tmp_path / "again.png")
    assert np.array_equal(image(again), strip)
    with pytest.raises(UsageError, match=str(tmp_path)):
        progress_strip(tmp_path)


def losses(folder, callbacks, **options):
    seen = Losses()
    fit = trainer(folder, 6, [Seeded(), seen, *callbacks], **options)
    torch.manual_seed(0)
    model = task()
    fit.fit(model, loader(6), loader(2, seed=1))
    return seen.all, model, torch.get_rng_state()


def test_training_is_the_same_with_and_without_pictures(tmp_path):
    class NoiseOfTheRun(Seeded):
        """Seeded once: whatever draws random numbers in between would show."""

        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 0:
                torch.manual_seed(0)

    plain, model, rng = losses(tmp_path, [NoiseOfTheRun()])
    drawn, other, rng_drawn = losses(
        tmp_path, [NoiseOfTheRun(), ValidationPictures(tmp_path / "pictures")]
    )
    assert step_folders(tmp_path / "pictures")
    assert plain == drawn
    assert torch.equal(rng, rng_drawn)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_pictures_that_cannot_be_written_do_not_stop_training(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    fit = trainer(tmp_path, 2, [ValidationPictures(tmp_path / "file")])
    with caplog.at_level(logging.WARNING, "headrace"):
        fit.fit(task(), loader(2), loader(1))
    assert fit.global_step == 2
    assert "pictures of the validation" in caplog.text


def test_a_model_that_makes_no_pictures_has_those_of_its_codes_and_short_floats_do(tmp_path):
    fit = trainer(tmp_path, 2, [ValidationPictures(tmp_path)], precision="bf16-mixed")
    fit.fit(task(aux_decoder=False), loader(2), loader(1))
    assert files(tmp_path / "step_00000002") >= {"codebook", "sequences", "datasets/a"}
    assert "reconstruction" not in files(tmp_path / "step_00000002")
    fit = trainer(
        tmp_path / "both", 2, [ValidationPictures(tmp_path / "both")], precision="bf16-mixed"
    )
    fit.fit(task(), loader(2), loader(1))
    assert files(tmp_path / "both" / "step_00000002") >= SHEETS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pictures_and_averages_of_a_run_on_a_gpu_in_short_floats(tmp_path):
    on_gpu = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed"}
    fit = trainer(tmp_path, 2, [ValidationPictures(tmp_path), Ema(0.9)], **on_gpu)
    fit.fit(task(), loader(2), loader(1))
    fit.save_checkpoint(tmp_path / "two.ckpt")
    assert files(tmp_path / "step_00000002") >= SHEETS
    fit = trainer(tmp_path, 4, [ValidationPictures(tmp_path), Ema(0.9)], **on_gpu)
    fit.fit(task(), loader(4), loader(1), ckpt_path=tmp_path / "two.ckpt")
    assert [step for step, _ in step_folders(tmp_path)] == [2, 4]


def test_validating_alone_draws_everything_too(tmp_path):
    fit = trainer(tmp_path, 2, [ValidationPictures(tmp_path)])
    fit.validate(task(), loader(1), verbose=False)
    assert files(tmp_path / "step_00000000") >= SHEETS


def test_long_runs_keep_pictures_that_span_them_and_resumed_ones_none_of_the_future(tmp_path):
    for step in (100, 200):  # of a run that was resumed before them
        (tmp_path / f"step_{step:08d}").mkdir()
    write_rows(tmp_path / "metrics.csv", [{"step": step, "val/loss": 1.0} for step in (100, 200)])
    fit = trainer(tmp_path, 6, [ValidationPictures(tmp_path, keep=4)], val_check_interval=1)
    fit.fit(task(), loader(6), loader(1))
    assert [step for step, _ in step_folders(tmp_path)] == [1, 3, 5, 6]
    assert [row["step"] for row in read_rows(tmp_path / "metrics.csv")] == [1, 2, 3, 4, 5, 6]


def test_errors_are_those_of_the_plain_formula():
    frames = torch.randint(0, 256, (4, 3, 2, 8, 8), dtype=torch.uint8)
    none = torch.zeros(())
    recon = torch.rand(4, 3, 8, 8)
    patches = recon.reshape(4, 3, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(4, 4, 48)
    output = LaqOutput(none, {}, torch.zeros(4, 4), none, none, 4, patches)
    errors = FrameErrors()
    errors.add(
        {"frames": frames, "dataset": torch.tensor([1, 1, 0, 1]), "names": ("x", "y")}, output
    )
    last, first = frames[:, :, 1] / 255, frames[:, :, 0] / 255
    found = errors.by_dataset()
    assert found["x"][0] == pytest.approx((recon - last)[2].square().mean().item())
    assert found["y"][1] == pytest.approx((first - last)[[0, 1, 3]].square().mean().item())


def test_bounds_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(UsageError, match="pictures 0"):
        ValidationPictures(tmp_path, pictures=0)
