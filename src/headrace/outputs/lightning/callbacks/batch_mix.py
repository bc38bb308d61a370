"""One record a batch, from which `headrace report` draws a run's mixture and waits."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from headrace.measure.runs import RunWriter, Step, StepClock
from headrace.outputs.lightning.callbacks.loading import (
    batch_samples,
    dataset_counts,
    find_loader,
    step_clock,
)
from headrace.outputs.lightning.callbacks.reporting import run_folder
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.lightning.progress import batches_trained
from headrace.outputs.torch import TorchLoader

__all__ = ["BatchMix"]

#: Whoever kills a run loses at most the records of so many seconds, or of so many batches.
_WRITE_SECONDS = 2.0
_WRITE_BATCHES = 256


class BatchMix(Callback):
    """Writes batch_times.jsonl into the run folder: when, how long, how long waited, of what.

    `dt_s` is the step from the end of the one before, validation left out; `fetch_dt_s` of it was
    waiting for data, null without a headrace loader. The first `warmup` batches of a run are marked
    and do not count in reports. A resumed run goes on in the file, and writes anew what comes after
    its checkpoint. The first rank writes, of its own slice.
    """

    def __init__(self, folder: str | Path | None = None, *, warmup: int = 8) -> None:
        self._folder, self._warmup = folder, warmup
        self._loader: TorchLoader | None = None
        self._run: RunWriter | None = None
        self._clock = StepClock()
        self._rows: list[tuple[Step, int, tuple[str, ...], Tensor | None]] = []
        self._written = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file, behind the records that a resumed run keeps."""
        folder = run_folder(trainer, self._folder)
        self._loader, self._rows = find_loader(trainer), []
        if trainer.global_rank == 0:
            self._run = RunWriter(folder, batches=True, resume=batches_trained(trainer))
        self._clock = step_clock(self._loader, warmup=self._warmup)
        self._written = perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note the batch; its counts may still be on their way on the device."""
        if self._run is None:
            return
        counts = dataset_counts(batch)
        names = () if counts is None else tuple(batch["names"])
        step = self._clock.end()
        self._rows.append((step, batch_samples(batch), names, counts))
        if step.now - self._written > _WRITE_SECONDS or len(self._rows) >= _WRITE_BATCHES:
            self._write()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._clock.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        self._clock.resume()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the rest."""
        self._close()

    def on_exception(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        exception: BaseException,
    ) -> None:
        """The same when training fails."""
        self._close()

    def _write(self) -> None:
        """Write what was noted: here the device is waited for, once for all of it."""
        if self._run is None:
            return
        rows, self._rows = self._rows, []
        tensors = [counts for *_, counts in rows if counts is not None]
        same = {len(counts) for counts in tensors}
        counted = iter(
            torch.stack(tensors).tolist() if len(same) == 1 else [x.tolist() for x in tensors]
        )
        for step, samples, names, counts in rows:
            values = next(counted) if counts is not None else []
            served = {name: n for name, n in zip(names, values, strict=True) if n}
            self._run.batch(
                step, samples=samples, counts=served, knows_wait=self._loader is not None
            )
        self._written = perf_counter()

    def _close(self) -> None:
        if self._run is not None:
            self._write()
            self._run.close()
            self._run = None
