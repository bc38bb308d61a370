"""What memory training takes, and how much was left."""

from __future__ import annotations

import math
import os
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.engine.memory import available_memory
from headrace.measure.runs import RunWriter
from headrace.outputs.lightning.callbacks.loading import find_loader
from headrace.outputs.lightning.callbacks.process_memory import tree_anonymous
from headrace.outputs.lightning.callbacks.reporting import (
    checked_interval,
    due,
    log,
    run_folder,
    say,
)
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.outputs.lightning.progress import batches_trained
from headrace.outputs.torch import TorchLoader

__all__ = ["Memory"]

_MB = 1e6
#: Seconds between two looks, at most; one takes under a millisecond.
_LOOK_SECONDS = 1.0


class Memory(Callback):
    """Logs `memory/anonymous_mb`, `.../available_mb` and its minimum, and the loader's budget.

    Anonymous is what this process and its children hold and cannot drop; available is what the
    machine or control group still has to give, and its minimum is that of the whole run. A look is
    taken once a second, between batches. memory.jsonl in the run folder has them for
    `headrace report`. The first rank speaks, of its own processes.
    """

    def __init__(
        self, every_n_steps: int | None = None, *, folder: str | Path | None = None
    ) -> None:
        self._every = checked_interval(every_n_steps)
        self._folder = folder
        self._loader: TorchLoader | None = None
        self._run: RunWriter | None = None
        self._looked = -math.inf
        self._anonymous = self._available = 0
        self._least = self._most = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new run."""
        self._loader = find_loader(trainer)
        folder = run_folder(trainer, self._folder)
        self._least, self._most, self._looked = math.inf, 0.0, -math.inf
        if trainer.global_rank == 0:
            self._run = RunWriter(folder, memory=True, resume=batches_trained(trainer))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Look, and log when it is time."""
        report = due(trainer, self._every)
        if report or perf_counter() - self._looked > _LOOK_SECONDS:
            self._look()
        if report:
            log(trainer, self._metrics())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The most and the least, in a line."""
        self._look()
        budget = self._budget()
        held = f" budget={budget[0] / _MB:,.0f} MB (most held {budget[2] / _MB:,.0f})"
        say(
            trainer,
            f"[Memory] anonymous={self._most / _MB:,.0f} MB at most{held if budget[0] else ''} "
            f"available={self._least / _MB:,.0f} MB at least",
        )
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Nothing more comes."""
        self._close()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _look(self) -> None:
        self._looked = perf_counter()
        self._anonymous, self._available = tree_anonymous(os.getpid()), available_memory()
        self._most = max(self._most, self._anonymous)
        self._least = min(self._least, self._available)
        if self._run is not None:
            self._run.memory(anonymous=self._anonymous, available=self._available)

    def _metrics(self) -> dict[str, float]:
        metrics = {
            "memory/anonymous_mb": self._anonymous / _MB,
            "memory/available_mb": self._available / _MB,
            "memory/available_min_mb": self._least / _MB,
        }
        limit, held, _ = self._budget()
        if limit:
            metrics |= {"memory/budget_mb": limit / _MB, "memory/budget_held_mb": held / _MB}
        return metrics

    def _budget(self) -> tuple[int, int, int]:
        """Limit, held and peak; zeros without a headrace loader."""
        if self._loader is None:
            return 0, 0, 0
        budget = self._loader.statistics().engine.budget
        return budget.limit, budget.held, budget.peak
