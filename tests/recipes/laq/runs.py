"""Short Lightning runs over made-up batches, for the tests of callbacks."""

import lightning
import torch

from headrace.recipes.laq import TrainingOptions
from headrace.recipes.laq.task import LaqTask
from tests.recipes.laq.test_model import mini

SIZE = 6


class Batches(torch.utils.data.Dataset):
    """So many batches of noise, of three datasets in turn; the same for the same seed.

    With `alike` all are the same: Lightning restarts plain data when a run is resumed.
    """

    def __init__(self, count, seed=0, alike=False):
        self._count, self._seed, self._alike = count, seed, alike

    def __len__(self):
        return self._count

    def __getitem__(self, i):
        rng = torch.Generator().manual_seed(1000 * self._seed + (0 if self._alike else i))
        shape = (SIZE, 3, 2, 32, 32)
        return {
            "frames": torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8),
            "names": ("a", "b", "c"),
            "dataset": torch.arange(SIZE) % 3,
            "action": torch.randn(SIZE, 7, generator=rng),
            "draws": torch.arange(i * SIZE, (i + 1) * SIZE),
        }


def loader(count, seed=0, alike=False):
    return torch.utils.data.DataLoader(Batches(count, seed, alike), batch_size=None)


class Seeded(lightning.Callback):
    """Every step has the noise of its number: also that of a resumed run."""

    def on_train_batch_start(self, trainer, *_):
        torch.manual_seed(trainer.global_step)


class Losses(lightning.Callback):
    def __init__(self):
        self.all = []

    def on_train_batch_end(self, trainer, task, outputs, *_):
        self.all.append(outputs["loss"].item())


def task(**changes):
    torch.manual_seed(3)
    return LaqTask(mini(**changes), TrainingOptions(steps=40, warmup=2, lr=2e-3))


def trainer(folder, steps, callbacks, **options):
    return lightning.Trainer(
        max_steps=steps,
        callbacks=callbacks,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "num_sanity_val_steps": 0,
            "val_check_interval": 2,
            "check_val_every_n_epoch": None,
            **options,
        },
    )
