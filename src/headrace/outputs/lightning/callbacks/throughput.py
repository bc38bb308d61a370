"""How fast training goes, and how much of the time it waits for data."""

from __future__ import annotations

from typing import Any

from headrace.measure.runs import StepClock
from headrace.outputs.lightning.callbacks.loading import batch_samples, find_loader, step_clock
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
        self._clock = StepClock(warmup=1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new run has a new loader."""
        self._loader = find_loader(trainer)
        self._clock = step_clock(self._loader, warmup=1)
        self._world = trainer.world_size
        if self._loader is not None:
            self._world = self._loader.loader.settings.world

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count, and log when it is time."""
        clock = self._clock
        clock.end(batch_samples(batch) * self._world)
        if not clock.steps or not due(trainer, self._every):
            return
        metrics = {
            "perf/samples_per_sec": clock.samples / clock.seconds,
            "perf/steps_per_sec": clock.steps / clock.seconds,
        }
        if self._loader is not None:
            metrics["perf/data_wait_frac"] = clock.wait_s / clock.seconds
        log(trainer, metrics)
        clock.clear()
        clock.begin()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._clock.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        self._clock.resume()
