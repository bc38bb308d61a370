"""Callbacks of a training run: random numbers by step, and the verdict at the end."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from headrace import Doctor
from headrace.files import atomic_write
from headrace.measure import Verdict, give_verdict, verdict_text, write_json
from headrace.outputs.lightning import GpuUsage, HeadraceDataModule
from headrace.recipes.training.baseline import BaselineData


class SeededSteps(Callback):
    """Seeds torch before every batch with a function of (seed, batch, rank).

    A resumed run then has the random numbers of the uninterrupted one, and no state of a generator
    has to be saved, which Lightning does not do and one file could not do for all ranks. Takes
    some microseconds; nothing waits for the device.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Seed this batch on this rank."""
        # Batches that were trained on, in this run and in those that it resumes.
        total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        sequence = np.random.SeedSequence([self._seed, total.processed, trainer.global_rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


class DoctorWatch(Callback):
    """`hr.Doctor` around the steps of a run: doctor.json and doctor.txt in its folder.

    A run that has waited for data takes some seconds more at its end, in which the limits of data
    and machine are measured, unless `limits` is false.
    """

    def __init__(
        self,
        folder: Path,
        data: HeadraceDataModule | BaselineData,
        gpu: GpuUsage | None = None,
        *,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        limits: bool = True,
        steps: int = 1000,
    ) -> None:
        self._folder, self._data, self._gpu = folder, data, gpu
        self._flops = (flops_per_step, peak_flops)
        self._limits = limits
        # A short run has no time to warm up, and gets a verdict all the same.
        self._warmup = (8, 3.0) if steps > 50 else (min(2, steps // 2), 0.0)
        self._doctor: Doctor | None = None
        self._pause: AbstractContextManager[None] | None = None
        self.verdict: Verdict | None = None
        self.text = ""
        self.gpu: dict[str, Any] | None = None  #: its use, for result.json

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Watch from the first batch on."""
        if trainer.global_rank != 0:
            return
        flops, peak = self._flops
        batches, seconds = self._warmup
        self._doctor = Doctor(
            self._data.loader if isinstance(self._data, HeadraceDataModule) else None,
            flops_per_step=flops,
            peak_flops=peak,
            run=False,
            warmup=batches,
            warmup_seconds=seconds,
            limits=self._limits,
            quiet=True,
        )
        self._doctor.__enter__()
        if isinstance(self._data, BaselineData):
            self._data.on_batch = self._doctor.on_batch

    def on_validation_start(self, *_: Any) -> None:
        """Validation is not part of a step."""
        if self._doctor is not None:
            self._pause = self._doctor.pause()
            self._pause.__enter__()

    def on_validation_end(self, *_: Any) -> None:
        """Continue to measure."""
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def saving(self) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint, which is not part of a step either."""
        if self._doctor is None or self._pause is not None:
            return nullcontext()
        return self._doctor.pause()

    def on_train_end(self, *_: Any) -> None:
        """Reach the verdict."""
        self._judge(None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Reach a verdict from what was seen, without further measurements."""
        self._judge(exception)

    def _judge(self, error: BaseException | None) -> None:
        doctor, self._doctor = self._doctor, None
        if doctor is None:
            return
        if isinstance(self._data, BaselineData):
            self._data.on_batch = None
        doctor.__exit__(None if error is None else type(error), error, None)
        evidence = doctor.evidence()
        if self._gpu is not None and (found := self._gpu.figures()) is not None:
            # The doctor's MFU is without checkpoints, too.
            self.gpu = found | ({"mfu": evidence.mfu} if evidence.mfu is not None else {})
            evidence = replace(evidence, gpu=self.gpu)
        self.verdict = give_verdict(evidence)
        self.text = verdict_text(self.verdict, evidence)
        about = {"evidence": evidence.to_dict(), "verdict": self.verdict.to_dict()}
        write_json(self._folder / "doctor.json", about)
        atomic_write(self._folder / "doctor.txt", self.text + "\n")
