"""The doctor beside a Lightning run: what limited it, told at its end."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from headrace.files import atomic_write
from headrace.measure.runs import write_json
from headrace.measure.verdict import Verdict, verdict_text
from headrace.outputs.lightning.callbacks import find_loader
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.tuning.doctor import Doctor

__all__ = ["DoctorWatch"]


class DoctorWatch(Callback):
    """`hr.Doctor` around the steps of a run: doctor.json and doctor.txt in its folder.

    A run that has waited for data takes some seconds more at its end, in which the limits of data
    and machine are measured, unless `limits` is false.
    """

    def __init__(
        self,
        folder: Path,
        *,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        limits: bool = True,
        steps: int = 1000,
    ) -> None:
        self._folder = folder
        self._flops = (flops_per_step, peak_flops)
        self._limits = limits
        # A short run has no time to warm up, and a verdict all the same.
        self._warmup = (8, 3.0) if steps > 50 else (min(2, steps // 2), 0.0)
        self._doctor: Doctor | None = None
        self._pause: AbstractContextManager[None] | None = None
        self.verdict: Verdict | None = None
        self.text = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch from the first batch on."""
        loader = find_loader(trainer)
        if loader is None or trainer.global_rank != 0:
            return
        flops, peak = self._flops
        batches, seconds = self._warmup
        self._doctor = Doctor(
            loader,
            flops_per_step=flops,
            peak_flops=peak,
            run=False,
            warmup=batches,
            warmup_seconds=seconds,
            limits=self._limits,
            quiet=True,
        )
        self._doctor.__enter__()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is no part of a step."""
        if self._doctor is not None:
            self._pause = self._doctor.pause()
            self._pause.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on."""
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def saving(self) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint, which is no part of a step either."""
        if self._doctor is None or self._pause is not None:
            return nullcontext()
        return self._doctor.pause()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge."""
        self._judge(None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Judge by what there was, without measuring anything more."""
        self._judge(exception)

    def _judge(self, error: BaseException | None) -> None:
        doctor, self._doctor = self._doctor, None
        if doctor is None:
            return
        doctor.__exit__(None if error is None else type(error), error, None)
        self.verdict = doctor.verdict()
        evidence = doctor.evidence()
        self.text = verdict_text(self.verdict, evidence)
        found = {"evidence": evidence.to_dict(), "verdict": self.verdict.to_dict()}
        write_json(self._folder / "doctor.json", found)
        atomic_write(self._folder / "doctor.txt", self.text + "\n")
