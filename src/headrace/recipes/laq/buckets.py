"""A few samples of every dataset, kept for pictures while a validation runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.laq.model import LaqOutput

__all__ = ["Bucket", "Buckets"]


@dataclass(slots=True)
class Bucket:
    """What is kept of one dataset."""

    frames: list[NDArray[np.uint8]] = field(default_factory=list)  #: [3, 2, H, W]
    recon: list[NDArray[np.float32]] = field(default_factory=list)  #: [3, H, W]
    codes: list[NDArray[np.int64]] = field(default_factory=list)  #: [codes]
    actions: list[NDArray[np.float32]] = field(default_factory=list)  #: [A]
    seen: int = 0  #: samples that came by

    def indices(self) -> NDArray[np.int64]:
        """The codes kept, [N, codes]."""
        return np.stack(self.codes)


class Buckets:
    """The first samples of every dataset, so many and no more: memory stays the same.

    Pictures are few (`pictures` a dataset); codes and actions are small and more are kept
    (`points` a dataset). A batch without dataset numbers goes to the bucket "all".
    """

    def __init__(self, pictures: int = 8, points: int = 2048, datasets: int = 64) -> None:
        self._pictures, self._points, self._datasets = pictures, points, datasets
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def items(self) -> list[tuple[str, Bucket]]:
        """The buckets by the name of their dataset, in the order of names."""
        return sorted(self._buckets.items())

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
            if len(bucket.frames) + waiting < self._pictures:
                show.append((i, bucket))
        self._keep_pictures(batch, output, show)

    def _keep_pictures(
        self, batch: Mapping[str, Any], output: LaqOutput, show: list[tuple[int, Bucket]]
    ) -> None:
        if not show:
            return
        rows = [i for i, _ in show]
        recon = output.recon
        frames = batch["frames"][rows].cpu().numpy()
        made = None if recon is None else recon[rows].float().cpu().numpy()
        for k, (_, bucket) in enumerate(show):
            bucket.frames.append(frames[k])
            if made is not None:
                bucket.recon.append(made[k])
