"""When a callback has something to say, and where it says it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from headrace.errors import UsageError
from headrace.outputs.lightning.framework import Trainer
from headrace.outputs.lightning.progress import batches_trained, logged_step

__all__ = ["checked_interval", "due", "log", "run_folder", "say"]


def checked_interval(every_n_steps: int | None) -> int | None:
    """Batches between two reports; None: the trainer's `log_every_n_steps`."""
    if every_n_steps is not None and every_n_steps < 1:
        raise UsageError(
            f"every_n_steps is {every_n_steps}",
            remedy="Give a number from 1 upwards, or nothing for the trainer's log_every_n_steps",
        )
    return every_n_steps


def due(trainer: Trainer, every_n_steps: int | None) -> bool:
    """Whether it is time, after a batch. A trainer that logs nothing (0) is asked nothing."""
    every: int = trainer.log_every_n_steps if every_n_steps is None else every_n_steps  # type: ignore[attr-defined]
    return every > 0 and batches_trained(trainer) % every == 0


def log(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Hand numbers to the loggers, under the step that Lightning's own have, and to callbacks."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=logged_step(trainer))
    trainer.callback_metrics.update(
        {name: torch.tensor(float(value)) for name, value in metrics.items()}
    )


def say(trainer: Trainer, line: str) -> None:
    """Print a line once, above a progress bar if there is one."""
    if trainer.global_rank != 0:
        return
    bar = trainer.progress_bar_callback
    if bar is not None and getattr(bar, "is_enabled", True):
        bar.print(line)
    else:
        print(line, flush=True)


def run_folder(trainer: Trainer, folder: str | Path | None) -> Path:
    """Where a run's files go. All ranks ask together: the trainer's answer is the first rank's."""
    return Path(folder or trainer.log_dir or trainer.default_root_dir)
