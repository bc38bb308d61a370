"""A few samples of every dataset, kept for pictures while a validation runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.recipes.laq.model import LaqOutput

__all__ = ["Bucket", "Buckets", "as_bytes"]


@dataclass(slots=True)
class Bucket:
    """What is kept of one dataset."""

    frames: list[NDArray[np.uint8]] = field(default_factory=list)  #: [3, 2, H, W]
    recon: list[NDArray[np.uint8]] = field(default_factory=list)  #: [3, H, W]
    codes: list[NDArray[np.int64]] = field(default_factory=list)  #: [codes]
    actions: list[NDArray[np.float32]] = field(default_factory=list)  #: [A]
    seen: int = 0  #: samples that came by

    def indices(self) -> NDArray[np.int64]:
        """The codes kept, [N, codes]."""
        return np.stack(self.codes)


class Buckets:
    """The first samples of every dataset, so many and no more: memory stays the same.

    Pictures are few (`pictures` a dataset, and `bytes` in all, shared evenly between the
    datasets); codes and actions are small and more are kept (`points` a dataset). A batch without
    dataset numbers goes to the bucket "all".
    """

    def __init__(
        self,
        pictures: int = 8,
        points: int = 2048,
        datasets: int = 64,
        bytes: int = 128 << 20,
    ) -> None:
        self._pictures, self._points, self._datasets = pictures, points, datasets
        self._bytes = bytes
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def items(self) -> list[tuple[str, Bucket]]:
        """The buckets by the name of their dataset, in the order of names."""
        return sorted(self._buckets.items())

    @property
    def held(self) -> int:
        """Bytes of the pictures that are kept."""
        images = [x for b in self._buckets.values() for x in (*b.frames, *b.recon)]
        return sum(image.nbytes for image in images)

    def clear(self) -> None:
        """Let go of everything, for the next validation."""
        self._buckets.clear()

    def add(self, batch: Mapping[str, Any], output: LaqOutput) -> None:
        """Keep what there is room for of a batch; only that is copied from the device."""
        count = len(output.indices)
        numbers = batch["dataset"].tolist() if "dataset" in batch else None
        names = [batch["names"][n] for n in numbers] if numbers is not None else ["all"] * count
        indices = output.indices.cpu().numpy()
        actions = batch["action"].cpu() if "action" in batch else None
        room = self._room(batch, output)
        show: list[tuple[int, Bucket]] = []
        for i, name in enumerate(names):
            if name not in self._buckets and len(self._buckets) >= self._datasets:
                continue
            bucket = self._buckets.setdefault(name, Bucket())
            bucket.seen += 1
            if len(bucket.codes) < self._points:
                bucket.codes.append(indices[i].copy())
                if actions is not None:
                    # Of a chunk of actions, the sum is what the window shows.
                    action = actions[i].reshape(-1, actions.shape[-1]).sum(0)
                    bucket.actions.append(action.numpy().copy())
            waiting = sum(other is bucket for _, other in show)
            if len(bucket.frames) + waiting < room:
                show.append((i, bucket))
        self._keep_pictures(batch, output, show)

    def _room(self, batch: Mapping[str, Any], output: LaqOutput) -> int:
        """Samples of a dataset whose pictures may be kept."""
        frames = int(batch["frames"][:1].numel())
        sample = frames + (0 if output.predicted is None else frames // 2)
        datasets = min(len(batch["names"]), self._datasets) if "dataset" in batch else 1
        return min(self._pictures, self._bytes // max(1, datasets * sample))

    def _keep_pictures(
        self, batch: Mapping[str, Any], output: LaqOutput, show: list[tuple[int, Bucket]]
    ) -> None:
        if not show:
            return
        rows = [i for i, _ in show]
        frames, recon = as_bytes(batch["frames"][rows]), output.recon
        made = None if recon is None else as_bytes(recon[rows])
        for k, (_, bucket) in enumerate(show):
            bucket.frames.append(frames[k])
            if made is not None:
                bucket.recon.append(made[k])


def as_bytes(values: Tensor) -> NDArray[np.uint8]:
    """Pixels, bytes or in [0, 1], as bytes on the host."""
    if values.dtype != torch.uint8:
        values = values.float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return values.cpu().numpy()
