"""A batch as tensors that share its memory."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast

import torch
from torch import Tensor

from headrace.loader import Batch

__all__ = ["Layout", "TorchBatch", "in_layout", "to_tensors"]

Layout: TypeAlias = Literal["BCTHW", "BTHWC"]

_ARRAYS = (
    "draws",
    "dataset",
    "episode_id",
    "frame_idx",
    "offset",
    "action",
    "action_is_pad",
    "state",
)


class TorchBatch(TypedDict):
    """A batch of windows. What the metadata mode leaves out has no key.

    On the CPU all tensors but `draws` are views of pooled memory: it is reused when the last of
    them is gone, so let go of them, or clone what you keep.
    """

    frames: Tensor  #: uint8 [B, 3, T, H, W] or [B, T, H, W, 3]
    names: tuple[str, ...]  #: table of source names
    draws: Tensor  #: int64 [B] numbers of the draws
    dataset: NotRequired[Tensor]  #: int32 [B] index into `names`
    episode_id: NotRequired[Tensor]  #: int64 [B] shard number << 32 | record number
    frame_idx: NotRequired[Tensor]  #: int32 [B] start t
    offset: NotRequired[Tensor]  #: int32 [B] steps to the last frame
    action: NotRequired[Tensor]  #: float32 [B, A] summed over the window, or [B, C, A]
    action_is_pad: NotRequired[Tensor]  #: bool [B, C] beyond the episode's end
    state: NotRequired[Tensor]  #: float32 [B, S] at t
    language: NotRequired[list[str]]  #: [B] instruction at t
    robot: NotRequired[list[str]]  #: [B] where a source names it, else ""


def to_tensors(batch: Batch, layout: Layout) -> TorchBatch:
    """The batch as tensors on the CPU, without a copy.

    Each tensor keeps the memory on lease. BCTHW is a permuted view: its strides are those of
    `torch.channels_last_3d`, and `.contiguous()` would copy.
    """
    values: dict[str, Any] = {"frames": in_layout(torch.from_numpy(batch.frames), layout)}
    for name in _ARRAYS:
        array = getattr(batch, name)
        if array is not None:
            values[name] = torch.from_numpy(array)
    if batch.language is not None:
        values["language"] = batch.language
    if batch.robot is not None:
        values["robot"] = batch.robot
    values["names"] = batch.names
    return cast(TorchBatch, values)


def in_layout(frames: Tensor, layout: Layout) -> Tensor:
    """Frames [B, T, H, W, C] seen in a layout, without a copy."""
    return frames.permute(0, 4, 1, 2, 3) if layout == "BCTHW" else frames
