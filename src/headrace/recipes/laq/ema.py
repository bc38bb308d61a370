"""An exponential moving average of the weights, which validates and is saved as the model's."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from headrace.errors import UsageError

_WARMUP = 10


def decay_at(updates: int, decay: float) -> float:
    """The decay after so many updates; it rises, so that the new model is soon forgotten.

    >>> [round(decay_at(n, 0.999), 3) for n in (0, 10, 100, 10_000)]
    [0.1, 0.55, 0.918, 0.999]
    """
    return min(decay, (1 + updates) / (_WARMUP + updates))


class Ema(WeightAveraging):
    """Averages the weights: after every step, average = decay * average + (1 - decay) * now.

    Validation sees the averaged weights, and checkpoints hold them as the model's
    (`load_from_checkpoint` gives the average) with the training weights beside them, so that a
    resumed run is the same as one that was not stopped. After training the model has the average.
    Codes that a `LaqTask` replaces restart in the average: half-way between its old and its new
    place a code would mean nothing.

    Put it after callbacks that use the model when a validation ends, as `ValidationPictures` does:
    it gives the training weights back then. Takes the memory of the weights once more. One
    process or DDP; no sharded weights.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"the decay of the average is {decay}", remedy="Give 0 <= decay < 1")
        super().__init__(use_buffers=False, multi_avg_fn=self._update)
        self._decay = decay

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put the average where training happens; the module itself is moved there later."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            # It is compared with 0 at every step: on a GPU that would wait for the step's end.
            self._average_model.n_averaged = self._average_model.n_averaged.cpu()

    @torch.no_grad()
    def restart_codes(self, task: LightningModule, replaced: Tensor) -> None:
        """Take codes over into the average as they are now; `replaced` is a mask [K]."""
        if self._average_model is None:
            return
        average: Any = self._average_model.module
        now: Any = task
        average.model.nsvq.codebook[replaced] = now.model.nsvq.codebook[replaced]

    def _update(self, averages: Any, weights: Any, _: Any) -> None:
        assert self._average_model is not None
        share = 1 - decay_at(int(self._average_model.n_averaged), self._decay)
        torch._foreach_lerp_(list(averages), list(weights), share)
