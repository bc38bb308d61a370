"""One record a batch, from which `headrace report` draws a run's mixture and waits."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import torch
from torch import Tensor

from headrace.outputs.lightning.callbacks.loading import (
    batch_samples,
    dataset_counts,
    find_loader,
)
from headrace.outputs.lightning.callbacks.records import go_on
from headrace.outputs.lightning.callbacks.reporting import run_folder
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.lightning.progress import batches_trained
from headrace.outputs.torch import TorchLoader

__all__ = ["BatchMix"]

_FILE = "batch_times.jsonl"
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
        self._file: TextIO | None = None
        self._rows: list[tuple[dict[str, Any], tuple[str, ...], Tensor | None]] = []
        self._last_seen: dict[str, int] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file, behind the records that a resumed run keeps."""
        path = run_folder(trainer, self._folder) / _FILE
        self._loader = find_loader(trainer)
        self._first = first = batches_trained(trainer)
        self._earlier = 0.0
        self._rows, self._last_seen = [], {}
        if trainer.global_rank == 0:
            self._file, self._earlier = go_on(path, lambda r: r.get("idx", first) < first)
        self._begun = self._ended = self._written = perf_counter()
        self._waited = self._waited_so_far()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note the batch; its counts may still be on their way on the device."""
        if self._file is None:
            return
        now, waited = perf_counter(), self._waited_so_far()
        number = batches_trained(trainer) - 1
        record: dict[str, Any] = {
            "idx": number,
            "t_s": round(self._earlier + now - self._begun, 6),
            "dt_s": round(now - self._ended, 7),
            "fetch_dt_s": None if self._loader is None else round(waited - self._waited, 7),
            "materialize_dt_s": None,
            "is_warmup": number - self._first < self._warmup,
            "samples": batch_samples(batch),
        }
        counts = dataset_counts(batch)
        names = () if counts is None else tuple(batch["names"])
        self._rows.append((record, names, counts))
        self._ended, self._waited = now, waited
        if now - self._written > _WRITE_SECONDS or len(self._rows) >= _WRITE_BATCHES:
            self._write()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._paused = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        if self._file is not None:
            self._ended += perf_counter() - self._paused

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

    def _waited_so_far(self) -> float:
        return 0.0 if self._loader is None else self._loader.waited_s

    def _write(self) -> None:
        """Write what was noted: here the device is waited for, once for all of it."""
        if self._file is None:
            return
        rows, self._rows = self._rows, []
        tensors = [counts for _, _, counts in rows if counts is not None]
        same = {len(counts) for counts in tensors}
        counted = iter(
            torch.stack(tensors).tolist() if len(same) == 1 else [x.tolist() for x in tensors]
        )
        for record, names, counts in rows:
            values = next(counted) if counts is not None else []
            served = {name: n for name, n in zip(names, values, strict=True) if n}
            record.update(self._mix(record["idx"], served))
            self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self._written = perf_counter()

    def _mix(self, number: int, served: dict[str, int]) -> dict[str, Any]:
        dominant = max(served, key=lambda name: served[name]) if served else None
        gap = None
        if dominant is not None:
            gap = number - self._last_seen.get(dominant, number)
            self._last_seen[dominant] = number
        return {
            "dominant_dataset": dominant,
            "dataset_counts": served,
            "dominant_gap_batches": gap,
        }

    def _close(self) -> None:
        if self._file is not None:
            self._write()
            self._file.close()
            self._file = None
