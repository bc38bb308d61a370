"""The loader behind a trainer's batches, and what a batch says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.measure.runs import StepClock
from headrace.outputs.lightning.datamodule import HeadraceDataModule
from headrace.outputs.lightning.framework import Trainer
from headrace.outputs.torch import TorchLoader

__all__ = ["batch_samples", "dataset_counts", "find_loader", "step_clock"]


def find_loader(trainer: Trainer) -> TorchLoader | None:
    """The data module's, or one that was given to `fit`; None: batches come from elsewhere."""
    data: Any = getattr(trainer, "datamodule", None)
    if isinstance(data, HeadraceDataModule):
        return data.loader
    return next((x for x in _leaves(trainer.train_dataloader) if isinstance(x, TorchLoader)), None)


def step_clock(loader: TorchLoader | None, warmup: int) -> StepClock:
    """A clock that begins now, with the waits of a loader if there is one."""
    waits = None if loader is None else lambda: loader.waited_s
    clock = StepClock(warmup=warmup, waits=waits)
    clock.begin()
    return clock


def batch_samples(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor."""
    if isinstance(batch, Mapping) and isinstance(batch.get("draws"), Tensor):
        return len(batch["draws"])
    found = next((x for x in _leaves(batch) if isinstance(x, Tensor) and x.ndim > 0), None)
    return 0 if found is None else len(found)


def dataset_counts(batch: Any) -> Tensor | None:
    """Samples of each of `names` in a batch, on its device; None: the batch does not say.

    Nothing waits for the device: whoever reads the counts does, so read those of many batches.
    """
    if not isinstance(batch, Mapping) or "names" not in batch:
        return None
    dataset = batch.get("dataset")
    if not isinstance(dataset, Tensor):
        return None
    ones = torch.ones_like(dataset, dtype=torch.int64)
    counts = torch.zeros(len(batch["names"]), dtype=torch.int64, device=dataset.device)
    return counts.index_add_(0, dataset, ones)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
