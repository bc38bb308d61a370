"""A tiny model and quiet trainers, for the tests with Lightning."""

import lightning.pytorch as pl
import torch


class Model(pl.LightningModule):
    """Trains one number, and remembers which draws it has seen."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.validated, self.fail_at = [], [], fail_at

    def training_step(self, batch, batch_idx):
        if self.fail_at == len(self.seen):
            raise RuntimeError("the step failed")
        self.seen.append(batch["draws"].tolist())
        loss = (self.weight - batch["frames"].float().mean() / 255) ** 2
        self.log("train/loss", loss, batch_size=len(batch["draws"]))
        return loss

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch["draws"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(tmp_path, **options):
    """A quiet one on the CPU."""
    options = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        **options,
    }
    return pl.Trainer(**options)


def every_step(tmp_path):
    """Checkpoints after every training step."""
    checkpoint = pl.callbacks.ModelCheckpoint(
        tmp_path / "checkpoints", "{step}", every_n_train_steps=1, save_top_k=-1
    )
    return {"enable_checkpointing": True, "callbacks": [checkpoint]}


def draws(first, count, size=4):
    """Draw numbers of the batches of one rank."""
    return [[*range(n, n + size)] for n in range(first, first + size * count, size)]
