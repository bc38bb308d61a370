"""How fast training goes, and how much of the time it waits for data."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from headrace.outputs.lightning.callbacks.loading import batch_samples, find_loader
from headrace.outputs.lightning.callbacks.reporting import checked_interval, due, log
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.torch import TorchLoader

__all__ = ["Throughput"]


class Throughput(Callback):
    """Logs `perf/samples_per_sec`, `perf/steps_per_sec` and `perf/data_wait_frac`.

    Each over the batches since the last time, the very first batch and validation left out. Samples
    are those of all ranks; steps are calls of `training_step`. The waiting is the loader's own
    measure, on this rank; without a headrace loader it is not logged.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every = checked_interval(every_n_steps)
        self._loader: TorchLoader | None = None
        self._world = 1
        self._since: float | None = None  # None: the first batch is not over
        self._waited = 0.0
        self._batches = self._samples = 0
        self._validating = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new run has a new loader."""
        self._loader, self._since = find_loader(trainer), None
        self._world = trainer.world_size
        if self._loader is not None:
            self._world = self._loader.options.world_size or 1

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count, and log when it is time."""
        if self._since is None:
            self._begin()
            return
        self._batches += 1
        self._samples += batch_samples(batch) * self._world
        if not due(trainer, self._every):
            return
        seconds = perf_counter() - self._since
        metrics = {
            "perf/samples_per_sec": self._samples / seconds,
            "perf/steps_per_sec": self._batches / seconds,
        }
        if self._loader is not None:
            waited = self._loader.waited_s - self._waited
            metrics["perf/data_wait_frac"] = min(1.0, waited / seconds)
        log(trainer, metrics)
        self._begin()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._validating = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        if self._since is not None:
            self._since += perf_counter() - self._validating

    def _begin(self) -> None:
        self._since = perf_counter()
        self._waited = 0.0 if self._loader is None else self._loader.waited_s
        self._batches = self._samples = 0
