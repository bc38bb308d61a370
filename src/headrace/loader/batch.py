"""What the loader hands to a trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch of windows. Arrays are views of pooled memory: it is reused when all are gone.

    With `metadata="dataset"` only frames and dataset are filled, with "none" only frames.
    """

    frames: NDArray[np.uint8]  #: [B, T, H, W, 3]
    names: tuple[str, ...]  #: table of source names
    draws: NDArray[np.int64]  #: [B] numbers of the draws
    dataset: NDArray[np.int32] | None = None  #: [B] index into `names`
    episode_id: NDArray[np.int64] | None = None  #: [B] shard number << 32 | record number
    frame_idx: NDArray[np.int32] | None = None  #: [B] start t
    offset: NDArray[np.int32] | None = None  #: [B] steps to the last frame
    action: NDArray[np.float32] | None = None  #: [B, A] at t, or as asked for (`LoaderOptions`)
    action_is_pad: NDArray[np.bool_] | None = None  #: [B, C] beyond the episode's end
    state: NDArray[np.float32] | None = None  #: [B, S] at t
    language: list[str] | None = None  #: [B] instruction at t
    robot: list[str] | None = None  #: [B] where a source names it, else ""

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.frames)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)}: frames {list(self.frames.shape)}>"

    def about(self) -> Batch:
        """Which samples it has, with frames of zeros: holds none of the pooled memory."""
        return Batch(
            frames=np.broadcast_to(np.uint8(0), self.frames.shape),
            names=self.names,
            draws=self.draws,
            dataset=None if self.dataset is None else self.dataset.copy(),
        )

    def where(self, row: int) -> dict[str, Any]:
        """Which sample a row is: dataset, episode, frame."""
        known: dict[str, Any] = {"draw": int(self.draws[row])}
        if self.dataset is not None:
            known["dataset"] = self.names[self.dataset[row]]
        if self.episode_id is not None and self.frame_idx is not None:
            number = int(self.episode_id[row])
            known["episode"] = f"{number >> 32:05d}/{number & 0xFFFFFFFF}"
            known["frame"] = int(self.frame_idx[row])
        return known


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EncodedBatch(Batch):
    """A batch whose frames may be JPEGs, for a device to decode: not for users."""

    encoded: NDArray[np.int32]  #: [B, T] 0, or as many bytes of a JPEG lie in the frame's place
    pending: Any  #: what the feed knows of it beside the arrays

    def __repr__(self) -> str:
        return f"<EncodedBatch of {len(self)}: frames {list(self.frames.shape)}>"
