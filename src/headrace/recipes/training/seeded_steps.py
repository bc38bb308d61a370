"""Random numbers that are a function of (seed, step, rank), as the draws of the loader are.

A run that goes on from a checkpoint then has the numbers of the uninterrupted one, and no state of
a generator has to be saved, which Lightning does not do and one file could not do for all ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer, batches_trained
from headrace.sampling.bijection import hash_ints

__all__ = ["SeededSteps"]


class SeededSteps(Callback):
    """Seeds torch before every batch. Some microseconds; nothing waits for the device."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The numbers of this batch, on this rank."""
        batches = batches_trained(trainer)
        torch.manual_seed(int(hash_ints(self._seed, batches, trainer.global_rank)[0] >> 1))
