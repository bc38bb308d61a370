"""metrics.csv: a row a step, continued by a resumed run; it has the loss of every step."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from lightning.pytorch.loggers import Logger

from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer, logged_step
from headrace.recipes.training.run_folder import read_rows, write_rows

__all__ = ["LossOfEveryStep", "MetricsFile"]

_WRITE_SECONDS = 2.0  # lost when a run is killed, but nothing before a checkpoint


class MetricsFile(Logger):
    """The logger behind metrics.csv.

    Lightning's own logger deletes the file of the run that is resumed. This one keeps the rows
    before `first_step`, where the checkpoint was, and replaces what came after.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, write: bool = True) -> None:
        super().__init__()
        self._folder, self._file, self._write = folder, folder / "metrics.csv", write
        self._first = first_step
        self._rows: dict[int, dict[str, Any]] = {}
        self._columns: list[str] = []  # empty: nothing was written yet
        self._written = monotonic()

    @property
    def name(self) -> str:
        """Required by Lightning."""
        return "metrics"

    @property
    def version(self) -> str:
        """Required by Lightning."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run's folder, which makes it the trainer's log folder."""
        return str(self._folder)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Nothing: they are in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add values of a step."""
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if not self._write or not values or step is None:
            return
        self._rows.setdefault(step, {"step": step}).update(values)
        if monotonic() - self._written > _WRITE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what was added; rows are appended as long as no new column appears."""
        self._written = monotonic()
        if not self._write or not self._rows:
            return
        rows = [self._rows[step] for step in sorted(self._rows)]
        self._rows = {}
        names = dict.fromkeys(name for row in rows for name in row)
        if self._columns and all(name in self._columns for name in names):
            with self._file.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(rows)
            return
        kept = read_rows(self._file)
        if not self._columns:  # the rows of the run that is resumed
            kept = [row for row in kept if row["step"] < self._first]
        self._columns = write_rows(self._file, [*kept, *rows])

    def finalize(self, status: str) -> None:
        """Write the rest, the values of one step in one row."""
        self.save()
        if self._columns:
            self._columns = write_rows(self._file, read_rows(self._file))


class LossOfEveryStep(Callback):
    """Writes train/loss of every step to metrics.csv, reading the device once an interval.

    A trainer that logs at every step would wait for the device at every step.
    """

    def __init__(self, metrics: MetricsFile, every_n_steps: int) -> None:
        self._metrics, self._every = metrics, max(1, every_n_steps)
        self._steps: list[int] = []
        self._losses: list[torch.Tensor] = []
        self.latest: float | None = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the loss on the device."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, torch.Tensor):
            return
        step = logged_step(trainer)
        if len(self._losses) >= self._every and step != self._steps[-1]:
            self._flush()
        self._steps.append(step)
        self._losses.append(loss.detach())

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write: a run resumed from this checkpoint does not repeat these steps."""
        self._flush()
        self._metrics.save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the rest."""
        self._flush()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the rest, if the device still answers."""
        try:
            self._flush()
        except RuntimeError:
            self._losses = []

    def _flush(self) -> None:
        """Wait for the device. A step of several batches gets their mean."""
        if not self._losses:
            return
        values = torch.stack([loss.float() for loss in self._losses]).tolist()
        of_step: dict[int, list[float]] = {}
        for step, value in zip(self._steps, values, strict=True):
            of_step.setdefault(step, []).append(value)
        self._steps, self._losses = [], []
        for step, several in of_step.items():
            self.latest = sum(several) / len(several)
            self._metrics.log_metrics({"train/loss": self.latest}, step)
