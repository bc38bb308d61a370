"""Position from a convolution: depthwise 3 x 3 x 3, causal in time.

A frame sees itself and the two frames before it, and in space one patch further each way.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PositionConvolution"]


class PositionConvolution(nn.Module):
    """A depthwise 3-D convolution as one 2-D convolution for each step back in time.

    A window has one or two frames, so of the three taps in time at most two ever meet a frame:
    a 3-D convolution would multiply the padding, and depthwise ones of three dimensions have no
    good kernels. The 2-D convolution has two ways that compute the same:

    - "conv": `conv2d` of a channels-last image, without a copy.
    - "shift": the sum of nine shifted images. Nine passes over memory as it stands, one when
      torch compiles it.

    "auto" takes the second when torch is compiling. `headrace.recipes.laq.speed` measures both.
    """

    method: Literal["auto", "conv", "shift"] = "auto"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, 3, 3, 3))  # [d, 1, time, rows, columns]
        nn.init.uniform_(self.weight, -1 / math.sqrt(27), 1 / math.sqrt(27))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, N, d] with N patches of a square grid."""
        batch, frames, tokens, dim = x.shape
        grid = math.isqrt(tokens)
        images = x.view(batch, frames, grid, grid, dim)
        out = self._plane(images.flatten(0, 1), back=0).view(images.shape)
        for back in range(1, min(frames, 3)):
            past = images[:, :-back]  # [B, T - back, g, g, d]
            seen = self._plane(past.flatten(0, 1), back).view(past.shape)
            out = out + functional.pad(seen, (0, 0, 0, 0, 0, 0, back, 0))
        return out.view(x.shape)

    def _plane(self, images: Tensor, back: int) -> Tensor:
        """Images [F, g, g, d] under the tap `back` steps before the present."""
        weight = self.weight[:, 0, 2 - back]  # [d, 3, 3]
        if self.method == "shift" or (self.method == "auto" and torch.compiler.is_compiling()):
            return _shifted(images, weight)
        weight = weight.unsqueeze(1).contiguous(memory_format=torch.channels_last)
        seen = functional.conv2d(images.permute(0, 3, 1, 2), weight, padding=1, groups=len(weight))
        return seen.permute(0, 2, 3, 1)


def _shifted(images: Tensor, weight: Tensor) -> Tensor:
    """images [F, g, g, d], weight [d, 3, 3]."""
    grid = images.shape[1]
    padded = functional.pad(images, (0, 0, 1, 1, 1, 1))  # [F, g + 2, g + 2, d]
    taps = [
        padded[:, row : row + grid, column : column + grid] * weight[:, row, column]
        for row in range(3)
        for column in range(3)
    ]
    out = taps[0]
    for tap in taps[1:]:
        out = out + tap
    return out
