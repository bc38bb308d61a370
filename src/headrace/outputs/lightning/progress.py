"""How far a trainer has come, by its own counters."""

from __future__ import annotations

import inspect
from typing import Any

from headrace.outputs.lightning.framework import Trainer

__all__ = ["batches_trained", "logged_step", "overfits", "rank_and_world", "takes_iterator"]


def batches_trained(trainer: Trainer) -> int:
    """Batches that were trained on, in this run and in those that it resumes.

    Not those that were fetched: without a length Lightning fetches one batch ahead. A batch whose
    step raised does not count, and a resumed run begins with it.
    """
    total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(total.processed)


def logged_step(trainer: Trainer) -> int:
    """The step under which Lightning logs what is logged now."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def overfits(trainer: Trainer) -> bool:
    """Whether every epoch is to have the same few batches."""
    return bool(getattr(trainer, "overfit_batches", 0))


def takes_iterator(trainer: Trainer) -> bool:
    """Whether `training_step` fetches batches itself, as many as it likes."""
    step = trainer.lightning_module.training_step
    return "dataloader_iter" in inspect.signature(step).parameters


def rank_and_world(trainer: Trainer) -> tuple[int, int]:
    """Which slice of the data this process is to have.

    That is not always its rank: processes that hold parts of one model share a slice.
    """
    found = trainer.distributed_sampler_kwargs
    return (0, 1) if found is None else (int(found["rank"]), int(found["num_replicas"]))
