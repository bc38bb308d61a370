"""Lightning, under the name by which it is installed, and what its trainer knows about a run.

`lightning` and `pytorch_lightning` are the same code twice, and their classes do not mix: with both
installed, training with `pytorch_lightning` requires importing it before this.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

__all__ = [
    "Callback",
    "LightningDataModule",
    "LightningModule",
    "Trainer",
    "batches_trained",
    "logged_step",
    "rank_and_world_size",
    "takes_iterator",
]

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find() -> ModuleType:
    """The one that is imported already, else the first that is installed."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", *_NAMES):
                raise
    raise UsageError(
        "training with Lightning (headrace.outputs.lightning) needs lightning, "
        "which is not installed",
        remedy="pip install 'headrace[train]'",
    )


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
else:
    _found = _find()
    Callback = _found.Callback
    LightningDataModule = _found.LightningDataModule
    LightningModule = _found.LightningModule
    Trainer = _found.Trainer


def batches_trained(trainer: Trainer) -> int:
    """Batches that were trained on, in this run and in those it resumes.

    Not those that were fetched: without a length Lightning fetches one batch ahead. A batch whose
    step raised does not count, and a resumed run begins with it.
    """
    total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(total.processed)


def logged_step(trainer: Trainer) -> int:
    """The step under which Lightning logs what is logged now."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def takes_iterator(trainer: Trainer) -> bool:
    """Whether `training_step` fetches batches itself, as many as it likes."""
    step = trainer.lightning_module.training_step
    return "dataloader_iter" in inspect.signature(step).parameters


def rank_and_world_size(trainer: Trainer) -> tuple[int, int]:
    """Which slice of the data this process gets.

    Not always that of its rank: processes that hold parts of one model share a slice.
    """
    found = trainer.distributed_sampler_kwargs
    return (0, 1) if found is None else (int(found["rank"]), int(found["num_replicas"]))
