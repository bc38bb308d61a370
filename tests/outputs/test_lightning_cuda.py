"""On a CUDA device: batches arrive there once, and the batch that is copied ahead is not lost."""

import json

import pytest
import torch

from tests.outputs.conftest import OPTIONS

pytest.importorskip("lightning.pytorch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from headrace.outputs.lightning import HeadraceDataModule, default_callbacks
from tests.outputs.lightning_runs import Model, draws, every_step, trainer

#: Lightning warns of much that is meant so here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Placed(Model):
    """Looks where its batches are."""

    def training_step(self, batch, batch_idx):
        assert batch["frames"].device == self.device
        assert self.device.type == "cuda"
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        assert batch["frames"].device == self.device


@pytest.mark.parametrize("device", ["auto", None])
def test_batches_are_on_the_device_and_a_resumed_run_misses_none(tmp_path, mixture, device):
    options = {"accelerator": "cuda", "limit_val_batches": 2, "val_check_interval": 3}
    whole, saving = Placed(), every_step(tmp_path)
    module = HeadraceDataModule(mixture, device=device, **OPTIONS)
    saving["callbacks"] += default_callbacks(tmp_path, every_n_steps=2)
    made = trainer(tmp_path, max_steps=7, **options, **saving)
    made.fit(whole, module)
    assert whole.seen == draws(0, 7)
    assert made.callback_metrics["perf/samples_per_sec"] > 0
    records = (tmp_path / "batch_times.jsonl").read_text().splitlines()
    assert [sum(json.loads(x)["dataset_counts"].values()) for x in records] == [4] * 7
    for done in (1, 3, 5):
        resumed = Placed()
        again = HeadraceDataModule(mixture, device=device, **OPTIONS)
        checkpoint = tmp_path / "checkpoints" / f"step={done}.ckpt"
        trainer(tmp_path, max_steps=7, **options).fit(resumed, again, ckpt_path=checkpoint)
        assert resumed.seen == draws(4 * done, 7 - done)


def test_lightning_does_not_copy_a_batch_again(tmp_path, mixture):
    places = []

    class Telling(Placed):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            places.append(batch["frames"].data_ptr())
            assert batch["frames"].is_cuda
            return batch

        def training_step(self, batch, batch_idx):
            assert batch["frames"].data_ptr() == places[-1]
            return super().training_step(batch, batch_idx)

    made = trainer(tmp_path, accelerator="cuda", max_steps=3)
    made.fit(Telling(), HeadraceDataModule(mixture, **OPTIONS))
    assert len(places) == 3
