"""How far the predicted frame t+k is from the real one, beside a copy of frame t."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.recipes.laq.model import LaqOutput

__all__ = ["FrameError", "FrameErrors", "frame_errors"]


@dataclass(frozen=True, slots=True)
class FrameError:
    """Mean squared errors over some samples, of pixels in [0, 1]."""

    recon_mse: float  #: of the model's prediction
    copy_mse: float  #: of frame t itself, taken for frame t+k: what a model must beat
    samples: int


def frame_errors(frames: Tensor, recon: Tensor) -> tuple[Tensor, Tensor]:
    """The errors of a prediction and of a copy of frame t, of each sample: two [B].

    frames [B, 3, 2, H, W], bytes or in [0, 1]; recon [B, 3, H, W].
    """
    scale = 1.0 if frames.is_floating_point() else 255.0
    first, last = frames[:, :, 0].float() / scale, frames[:, :, -1].float() / scale
    off, still = (recon.float() - last).square(), (first - last).square()
    return off.flatten(1).mean(1), still.flatten(1).mean(1)


class FrameErrors:
    """The errors of every dataset, summed up on the device: nothing waits for it meanwhile."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None  # [datasets, 3]: errors, errors of the copy, samples

    def add(self, batch: Mapping[str, Any], output: LaqOutput) -> tuple[Tensor, Tensor] | None:
        """Add a batch; the errors of its samples, or None where the model makes no pictures."""
        recon = output.recon
        if recon is None:
            return None
        off, still = frame_errors(batch["frames"], recon)
        rows = torch.stack([off, still, torch.ones_like(off)], 1).double()  # [B, 3]
        dataset = batch.get("dataset")
        names = ("all",) if dataset is None else tuple(batch["names"])
        if dataset is None:
            dataset = torch.zeros(len(off), dtype=torch.int64, device=off.device)
        if self._sums is None or names != self._names:
            self._names = names
            self._sums = torch.zeros(len(names), 3, dtype=torch.float64, device=off.device)
        self._sums.index_add_(0, dataset.to(off.device), rows)
        return off, still

    def by_dataset(self) -> dict[str, FrameError]:
        """The mean errors of every dataset that came by."""
        if self._sums is None:
            return {}
        rows = zip(self._names, self._sums.tolist(), strict=True)
        return {n: FrameError(e / c, s / c, int(c)) for n, (e, s, c) in rows if c}
