"""metrics.csv: a row a step, which a resumed run goes on with; the loss of every step is in it."""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from lightning.pytorch.loggers import Logger

from headrace.outputs.lightning.callbacks import checked_interval
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer, logged_step

__all__ = ["EveryLoss", "MetricsFile"]

_WRITE_SECONDS = 2.0  # whoever kills a run loses so much, but nothing before a checkpoint


class MetricsFile(Logger):
    """The logger behind metrics.csv.

    Lightning's own deletes the file of the run that is resumed. This one keeps the rows before
    `first_step`, where the checkpoint was, and writes anew what comes after.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, write: bool = True) -> None:
        super().__init__()
        self._folder, self._file, self._write = folder, folder / "metrics.csv", write
        self._first = first_step
        self._rows: dict[int, dict[str, Any]] = {}
        self._columns: list[str] = []  # none: nothing was written yet
        self._written = monotonic()

    @property
    def name(self) -> str:
        """Lightning asks."""
        return "metrics"

    @property
    def version(self) -> str:
        """Lightning asks."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run's folder, which is the trainer's log folder then."""
        return str(self._folder)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """They are in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Values of a step."""
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if not self._write or not values or step is None:
            return
        self._rows.setdefault(step, {"step": step}).update(values)
        if monotonic() - self._written > _WRITE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what there is."""
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
        kept = self._read()
        if not self._columns:  # of the run that goes on
            kept = [row for row in kept if int(row["step"]) < self._first]
        self._replace([*kept, *rows])

    def finalize(self, status: str) -> None:
        """Write the rest, the values of one step in one row."""
        self.save()
        if self._columns:
            self._replace(self._read())

    def _read(self) -> list[dict[str, Any]]:
        """The rows there are; half a row at the end, of a killed run, is left out."""
        if not self._file.exists():
            return []
        with self._file.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if (row["step"] or "").isdigit() and None not in row.values()]

    def _replace(self, rows: list[dict[str, Any]]) -> None:
        merged: dict[int, dict[str, Any]] = {}
        for row in rows:
            given = {key: value for key, value in row.items() if value not in ("", None)}
            merged.setdefault(int(row["step"]), {}).update(given)
        names = {name for row in merged.values() for name in row} - {"step"}
        self._columns = ["step", *sorted(names)]
        aside = self._file.with_name(f".metrics.csv.{os.getpid()}")
        with aside.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(merged[step] for step in sorted(merged))
        aside.replace(self._file)


class EveryLoss(Callback):
    """Writes train/loss of every step into metrics.csv, reading the device once an interval.

    A trainer that logs at every step would wait for the device at every step.
    """

    def __init__(self, metrics: MetricsFile, every_n_steps: int) -> None:
        self._metrics, self._every = metrics, checked_interval(every_n_steps) or 1
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
        """Keep the loss where it is."""
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
        """What was before a checkpoint is not written again."""
        self._flush()
        self._metrics.save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The rest."""
        self._flush()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The rest, if the device still answers."""
        try:
            self._flush()
        except RuntimeError:
            self._losses = []

    def _flush(self) -> None:
        """Here the device is waited for. A step of several batches has their mean."""
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
