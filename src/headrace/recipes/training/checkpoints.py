"""Checkpoints: written whole or not at all, now and then, at the end, and when a run is stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from headrace.outputs.lightning.framework import LightningModule, Trainer

__all__ = ["LastCheckpoint", "WholeCheckpoints"]


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the file and renames.

    Lightning's own way writes to the system's temporary folder first and copies from there: a run
    that is killed then leaves half a file in the place of a good one.

    Each writing happens within what the callables of `during` give.
    """

    def __init__(self, *during: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._during = during

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Replace the file by one that is on the disk."""
        with ExitStack() as stack:
            for enter in self._during:
                stack.enter_context(enter())
            self._save(checkpoint, Path(path))

    @staticmethod
    def _save(checkpoint: dict[str, Any], target: Path) -> None:
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        except BaseException as error:
            aside.unlink(missing_ok=True)
            if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
                raise error.__context__ from None  # torch wraps a full disk into words of its own
            raise


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` every so many steps or minutes, after the last step, and on Ctrl-C.

    The first Ctrl-C (or SIGTERM) ends the run after the step under way; `stopped` says so. The
    second one ends it at once. With several ranks the first one's clock and signals count, asked
    for every `look` steps, because all must save and stop at the same step.
    """

    def __init__(self, file: Path, *, every_n_steps: int, minutes: float, look: int = 10) -> None:
        self._file = file
        self._every, self._seconds, self._look = every_n_steps, 60 * minutes, look
        self._saved_at, self._step = monotonic(), 0
        self._asked = False
        self._before: dict[int, Any] = {}
        self.stopped = False  #: a signal has ended the run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From now on there are steps to wait for the end of."""
        self._saved_at, self._step = monotonic(), trainer.global_step
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if it is time; stop if a person or a cluster wants that."""
        step = trainer.global_step
        if step == self._step:
            return  # gradients of several batches are summed up: a checkpoint would lack them
        self._step = step
        timely, stop = monotonic() - self._saved_at > self._seconds, self._asked
        if trainer.world_size > 1:
            asks = step % self._look == 0
            timely, stop = trainer.strategy.broadcast((timely, stop)) if asks else (False, False)
        if step % self._every == 0 or timely or stop or step == trainer.max_steps:
            trainer.save_checkpoint(self._file)
            self._saved_at = monotonic()
        if stop:
            self.stopped = True
            trainer.limit_val_batches = 0  # else Lightning validates before it stops
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Signals are the program's again."""
        self._restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The same."""
        self._restore()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            print("\nstopping after this step; again to stop at once", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
