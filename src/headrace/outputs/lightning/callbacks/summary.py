"""How a run ended: a line for whoever looks, and result.json for `headrace report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.measure.runs import RESULT, RunWriter, StepClock, outcome_of, read_object
from headrace.outputs.lightning.callbacks.loading import batch_samples, find_loader, step_clock
from headrace.outputs.lightning.callbacks.reporting import run_folder, say
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.torch import TorchLoader

__all__ = ["Summary"]

_PROGRAM = "lightning"


class Summary(Callback):
    """Prints `[Summary] N steps, samples/s, waiting for data` at the end, and writes result.json.

    Validation and the very first batch are left out; samples are those of all ranks, waiting is the
    first rank's. Also a run that fails or is interrupted has both. While it trains there is no
    result.json, so that a killed run does not look like one that ended; one that another program
    wrote is left as it is.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = folder
        self._path: Path | None = None  # None: not the first rank, or told already
        self._loader: TorchLoader | None = None
        self._world = 1
        self._clock = StepClock(warmup=1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new run."""
        folder = run_folder(trainer, self._folder)
        self._loader = find_loader(trainer)
        self._clock = step_clock(self._loader, warmup=1)
        self._world = trainer.world_size
        if self._loader is not None:
            self._world = self._loader.loader.settings.world
        self._path = folder / RESULT if trainer.global_rank == 0 else None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A run that goes on has not ended; one that has nothing left to train keeps its result."""
        if not self._clock.ended and self._path is not None and _ours(self._path):
            self._path.unlink()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count."""
        self._clock.end(batch_samples(batch) * self._world)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._clock.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        self._clock.resume()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It ended as it should."""
        self._tell(trainer, "complete", None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """It did not."""
        outcome = outcome_of(exception)
        stopped = outcome.status == "interrupted"
        cause = f"stopped at step {trainer.global_step:,}" if stopped else outcome.cause
        self._tell(trainer, outcome.status, cause)

    def _tell(self, trainer: Trainer, status: str, cause: str | None) -> None:
        path, self._path = self._path, None
        if path is None:
            return
        numbers: dict[str, Any] = {
            "program": _PROGRAM,
            "steps": trainer.global_step,
            "world": self._world,
        }
        clock = self._clock
        parts = [f"{trainer.global_step:,} steps"]
        if clock.seconds:
            numbers["samples_per_s"] = clock.samples / clock.seconds
            parts.append(f"{clock.samples / clock.seconds:,.0f} samples/s")
            if self._loader is not None:
                numbers["stall_s_per_step"] = clock.wait_s / clock.steps
                numbers["loader_share"] = clock.wait_s / clock.seconds
                parts.append(f"waiting for data {clock.wait_s / clock.seconds:.1%} of the time")
        if not path.exists():
            RunWriter(path.parent).finish(status, cause, numbers)
        say(trainer, f"[Summary] {status}: {', '.join(parts)}")


def _ours(path: Path) -> bool:
    return read_object(path)[0].get("program") == _PROGRAM
