"""What follows each token, for trainers that compare position with position, such as MaxText."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["shift_targets"]


def shift_targets(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch whose `targets` are those of the next position; the last one has none.

    >>> tokens, real = np.array([[0, 1, 22, 0, 0]]), np.array([[1, 1, 1, 1, 0]])
    >>> shifted = shift_targets({"targets": tokens, "targets_segmentation": real})
    >>> shifted["targets"].tolist(), shifted["targets_segmentation"].tolist()
    ([[1, 22, 0, 0, 0]], [[1, 1, 1, 0, 0]])

    A trainer's own shift usually leaves a padding token out of the loss wherever it stands. Here 0
    is also the beginning of a measurement, so `targets_segmentation` alone says what counts. All
    arrays are copies: whoever keeps the batch holds nothing of a loader's or a worker's memory.
    """
    shifted = {name: np.array(values) for name, values in batch.items()}
    for name in ("targets", "targets_segmentation"):
        shifted[name][..., :-1] = batch[name][..., 1:]
        shifted[name][..., -1] = 0
    return shifted
