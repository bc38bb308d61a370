"""How a run ended: a line for whoever looks, and result.json for `headrace report`."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.outputs.lightning.callbacks.loading import batch_samples, find_loader
from headrace.outputs.lightning.callbacks.reporting import run_folder, say
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.torch import TorchLoader

__all__ = ["Summary"]

_FILE = "result.json"
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
        self._since: float | None = None  # None: the first batch is not over
        self._until = self._waited_before = self._waited = self._validating = 0.0
        self._batches = self._samples = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new run."""
        folder = run_folder(trainer, self._folder)
        self._loader, self._since = find_loader(trainer), None
        self._world = trainer.world_size
        if self._loader is not None:
            self._world = self._loader.options.world_size or 1
        self._batches = self._samples = 0
        self._path = folder / _FILE if trainer.global_rank == 0 else None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A run that goes on has not ended; one that has nothing left to train keeps its result."""
        if self._since is None and self._path is not None and _ours(self._path):
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
        self._until, self._waited = perf_counter(), self._waited_so_far()
        if self._since is None:
            self._since, self._waited_before = self._until, self._waited
        else:
            self._batches += 1
            self._samples += batch_samples(batch) * self._world

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is not training: its time does not count."""
        self._validating = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        if self._since is not None:
            took = perf_counter() - self._validating
            self._since, self._until = self._since + took, self._until + took

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It ended as it should."""
        self._tell(trainer, "complete", None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """It did not."""
        if isinstance(exception, KeyboardInterrupt):
            self._tell(trainer, "interrupted", f"stopped at step {trainer.global_step:,}")
        else:
            self._tell(trainer, "failed", f"{type(exception).__name__}: {exception}")

    def _waited_so_far(self) -> float:
        return 0.0 if self._loader is None else self._loader.waited_s

    def _tell(self, trainer: Trainer, status: str, cause: str | None) -> None:
        path, self._path = self._path, None
        if path is None:
            return
        result: dict[str, Any] = {
            "name": path.parent.name,
            "program": _PROGRAM,
            "status": status,
            "cause": cause,
            "steps": trainer.global_step,
            "world": self._world,
        }
        parts = [f"{trainer.global_step:,} steps"]
        if self._since is not None and self._batches and self._until > self._since:
            seconds = self._until - self._since
            result["samples_per_s"] = self._samples / seconds
            parts.append(f"{self._samples / seconds:,.0f} samples/s")
            if self._loader is not None:
                waited = min(seconds, self._waited - self._waited_before)
                result["stall_s_per_step"] = waited / self._batches
                result["loader_share"] = waited / seconds
                parts.append(f"waiting for data {waited / seconds:.1%} of the time")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        say(trainer, f"[Summary] {status}: {', '.join(parts)}")


def _ours(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("program") == _PROGRAM
