"""A line now and then that says how training goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headrace.outputs.lightning.callbacks.reporting import checked_interval, due, say
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer

__all__ = ["ProgressLine"]


class ProgressLine(Callback):
    """Prints `[Step N] loss=... lr=... epoch=...`, which a log file keeps and a bar does not."""

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every = checked_interval(every_n_steps)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The line, when it is time: only then is the device waited for."""
        if due(trainer, self._every):
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            parts = [f"loss={float(loss):.4f}"] if isinstance(loss, Tensor | float) else []
            if trainer.optimizers:
                parts.append(f"lr={trainer.optimizers[0].param_groups[0]['lr']:.3g}")
            parts.append(f"epoch={trainer.current_epoch}")
            say(trainer, f"[Step {trainer.global_step}] {' '.join(parts)}")
