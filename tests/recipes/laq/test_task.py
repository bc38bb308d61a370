"""The Lightning module: logged names, maintenance of the codebook, checkpoints, bad losses."""

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

import headrace as hr  # noqa: E402
from headrace.outputs.torch import TorchLoader  # noqa: E402
from headrace.recipes.laq import (  # noqa: E402
    NonFiniteLossError,
    TrainingOptions,
    provenance,
)
from headrace.recipes.laq.task import LaqTask  # noqa: E402
from headrace.recipes.laq.validation import SampleStore  # noqa: E402
from headrace.testing import synthesize  # noqa: E402
from tests.recipes.laq.test_model import frames, mini  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # lightning's advice on workers and the like


def batches(count, size=4):
    made = []
    for i in range(count):
        draws = torch.arange(i * size, (i + 1) * size)
        made.append({"frames": frames(size), "names": ("a",), "draws": draws})
    return made


def loader(made):
    """Batches as they are: a list would be taken for several loaders."""
    return torch.utils.data.DataLoader(made, batch_size=None)


class Recorder(lightning.Callback):
    """Names logged at every training step, and those of validation."""

    def __init__(self):
        self.steps, self.validation, self.outputs = [], {}, []

    def on_train_batch_end(self, trainer, *_):
        self.steps.append({k: float(v) for k, v in trainer.callback_metrics.items()})

    def on_validation_batch_end(self, trainer, task, outputs, *_):
        self.outputs.append(outputs)

    def on_validation_end(self, trainer, task):
        self.validation = dict(trainer.callback_metrics)


def trainer(tmp_path, recorder, steps, **options):
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[recorder],
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{"enable_checkpointing": False, "limit_val_batches": 1, **options},
    )


def task(tmp_path=None, **changes):
    return LaqTask(mini(**changes), TrainingOptions(steps=40, warmup=5, lr=1e-3), folder=tmp_path)


def test_training_logs_the_loss_every_step_and_the_rest_every_ten(tmp_path):
    recorder, model = Recorder(), task()
    before = model.model.nsvq.codebook.detach().clone()
    data = batches(20)
    trainer(tmp_path, recorder, 20, val_check_interval=20).fit(
        model, loader(data), loader(data[:2])
    )
    every_ten = {
        "train/lr",
        "train/vq_perplexity",
        "train/codebook_used",
        "train/codebook_replaced",
    }
    every_ten |= {"train/codebook_min_count", "train/feature_loss", "train/aux_loss"}
    assert "train/loss" in recorder.steps[0]
    assert not every_ten & set(recorder.steps[0])
    assert every_ten <= set(recorder.steps[9])
    assert len({step["train/loss"] for step in recorder.steps}) == 20
    names = {n.replace("train/", "val/") for n in every_ten if n.startswith("train/")}
    assert names - {"val/codebook_replaced", "val/lr"} | {"val/loss"} <= set(recorder.validation)
    assert recorder.outputs[0]["output"].recon.shape == (4, 3, 32, 32)
    # Replaced after steps 10 and 20: a new model uses few codes, and counting started again.
    assert recorder.steps[19]["train/codebook_replaced"] > 0
    assert model.model.nsvq.counts.sum() == 0
    assert not torch.equal(model.model.nsvq.codebook, before)


def test_gradients_are_clipped_by_default(tmp_path):
    class Norms(lightning.Callback):
        def __init__(self):
            self.before, self.after = [], []

        def norm(self, task):
            grads = [p.grad for p in task.parameters() if p.grad is not None]
            return float(torch.nn.utils.get_total_norm(grads)) if grads else None

        def on_before_optimizer_step(self, trainer, task, optimizer):
            self.before.append(self.norm(task))

        def on_before_zero_grad(self, trainer, task, optimizer):
            self.after.append(self.norm(task))  # what the step before has left

    norms, model = Norms(), task()
    with torch.no_grad():
        model.model.decoders["feature"].read.weight.mul_(50)  # a steep start
    trainer(tmp_path, norms, 3, limit_val_batches=0).fit(model, loader(batches(3)))
    assert norms.before[0] > 2
    assert norms.after[1] == pytest.approx(1, rel=1e-3)


def test_a_bad_loss_stops_training_and_leaves_its_samples(tmp_path):
    data = batches(3)
    data[1]["frames"] = data[1]["frames"].float()
    data[1]["frames"][2, 0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteLossError, match="step 2"):
        trainer(tmp_path, Recorder(), 3).fit(task(tmp_path / "bad"), loader(data))
    assert (tmp_path / "bad" / "nonfinite_step_2.json").exists()


def test_a_checkpoint_brings_weights_counts_and_config_back(tmp_path):
    model = task(codes=2)
    run = trainer(tmp_path, Recorder(), 7, enable_checkpointing=True, limit_val_batches=0)
    run.fit(model, loader(batches(7)))
    path = tmp_path / "laq.ckpt"
    run.save_checkpoint(path)
    other = LaqTask.load_from_checkpoint(path, weights_only=True)
    assert other.model.config == model.model.config
    assert other.options == model.options
    assert torch.equal(other.model.nsvq.codebook, model.model.nsvq.codebook)
    assert other.model.nsvq.counts.sum() == 7 * 4 * 2
    resumed = task(codes=2)
    again = trainer(tmp_path, recorder := Recorder(), 9, limit_val_batches=0)
    again.fit(resumed, loader(batches(9)), ckpt_path=path)
    assert again.global_step == 9
    assert len(recorder.steps) == 2


def test_batches_of_a_loader_are_trained_on_and_looked_at(tmp_path):
    """The loader's own batches, from synthetic data to the pictures of a validation."""
    synthesize(tmp_path / "data", only=("bridge", "kuka"), episodes=2, seed=5, _max_steps=7)
    defaults = {"split": "train[:1]", "val_split": "train[1:]", "offset": 2, "weight": 1.0}
    mixture = hr.Mixture.from_dict(
        {
            "root": str(tmp_path / "data"),
            "defaults": defaults,
            "sources": [{"name": "bridge"}, {"name": "kuka"}],
        }
    )
    options = {"batch_size": 4, "image_size": 32, "keep_free": 0}
    recorder, model = Recorder(), task()
    with TorchLoader(mixture, steps_per_epoch=3, workers=0, **options) as data:
        trainer(tmp_path, recorder, 3, limit_val_batches=0).fit(model, data)
        batch = next(iter(data))
        model.model.eval()
        store = SampleStore()
        with torch.no_grad():
            store.add(batch, model(batch["frames"]))
        samples = provenance(batch)
        del batch
    assert len(recorder.steps) == 3
    assert {name for name, _ in store.items()} == {sample["dataset"] for sample in samples}
    assert all(sample["offset"] == 2 for sample in samples)
    kept = dict(store.items())[samples[0]["dataset"]]
    assert len(kept.recon) == len(kept.frames) > 0
