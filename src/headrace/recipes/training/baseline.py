"""Batches of a baseline instead of the loader's: the same program, trained on by both, compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

from lightning.pytorch import LightningDataModule

from headrace.config import Mixture
from headrace.errors import UsageError
from headrace.loader import Batch, LoaderOptions
from headrace.measure.baselines import Job, Opened, find_baseline
from headrace.outputs.torch import TorchBatch, to_tensors


class BaselineData(LightningDataModule):
    """A baseline as a data module for one process: the tensors, and the layout, of `TorchLoader`.

    Validation is the baseline's own: for tf.data a second set of pipelines, opened when a
    validation begins and dropped when it ends. A baseline has no position to resume from: a resumed
    run begins its sequence again.
    """

    def __init__(
        self,
        backend: str,
        mixture: Mixture,
        loader: LoaderOptions,
        options: Mapping[str, Any],
        val_batches: int,
    ) -> None:
        super().__init__()
        self._baseline = find_baseline(backend)
        self._job = Job(mixture, loader, options)
        self._val_batches = val_batches
        self._stack = ExitStack()
        self._opened: Opened | None = None
        self.waited_s = 0.0  #: for batches of training so far, the conversion to tensors included
        self.on_batch: Callable[[float, int], None] | None = None  #: told every wait, and samples

    @property
    def shares(self) -> dict[str, float]:
        """Requested of each source."""
        return dict(self.opened.figures()["asked"])

    @property
    def opened(self) -> Opened:
        """The baseline at work, from setup to teardown."""
        assert self._opened is not None
        return self._opened

    def setup(self, stage: str) -> None:
        """Open the baseline, in the process that trains."""
        if self.trainer is not None and self.trainer.world_size > 1:
            raise UsageError(
                f"data.backend={self._baseline.name} has no ranks, and this run has "
                f"{self.trainer.world_size}",
                remedy="Train on one device (training.devices=1), or with headrace's own loader",
            )
        if self._opened is None:
            self._opened = self._stack.enter_context(self._baseline.open(self._job, None))

    def train_dataloader(self) -> Iterator[TorchBatch]:
        """Endless batches."""
        return self._training()

    def val_dataloader(self) -> _Validation:
        """Batches of the validation splits; each iteration is a pass of its own."""
        return _Validation(self.opened, self._val_batches)

    def teardown(self, stage: str) -> None:
        """Close the baseline."""
        self._opened = None
        self._stack.close()

    def _training(self) -> Iterator[TorchBatch]:
        batches = iter(self.opened)
        while True:
            started = perf_counter()
            found = next(batches, None)
            if found is None:  # closed meanwhile
                return
            batch = _tensors(found)
            waited = perf_counter() - started
            self.waited_s += waited
            if self.on_batch is not None:
                self.on_batch(waited, len(batch["draws"]))
            yield batch


class _Validation:
    def __init__(self, opened: Any, batches: int) -> None:
        self._opened, self._batches = opened, batches

    def __iter__(self) -> Iterator[TorchBatch]:
        with closing(self._opened.validation(self._batches)) as batches:
            for number, batch in enumerate(batches, 1):
                if number == self._batches:
                    batches.close()  # trainers that count stop before the iteration ends
                yield _tensors(batch)


def _tensors(batch: Batch) -> TorchBatch:
    with warnings.catch_warnings():
        # TensorFlow's arrays are read-only; nothing writes into a batch.
        warnings.filterwarnings("ignore", ".*not writable", UserWarning)
        return to_tensors(batch, "BCTHW")
