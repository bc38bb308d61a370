"""Position from a convolution: depthwise 3 x 3 x 3, causal in time.

A frame sees itself and the two frames before it, and in space one patch further each way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PositionConvolution"]


class PositionConvolution(nn.Module):
    """A depthwise 3-D convolution computed as one 2-D convolution a time step back.

    A window has one or two frames, so of the three taps in time at most two ever meet a frame.
    The 2-D convolutions of channels-last tensors are what cuDNN is quick at; its depthwise 3-D
    convolution is not, and would also multiply the padding.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, 3, 3, 3))  # [d, 1, time, rows, columns]
        nn.init.uniform_(self.weight, -1 / math.sqrt(27), 1 / math.sqrt(27))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, N, d] with N patches of a square grid."""
        batch, frames, tokens, dim = x.shape
        grid = math.isqrt(tokens)
        out = self._conv(x.flatten(0, 1), grid, back=0).view(batch, frames, tokens, dim)
        for back in range(1, min(frames, 3)):
            past = x[:, :-back].flatten(0, 1)  # [B*(T-back), N, d]
            seen = self._conv(past, grid, back).view(batch, frames - back, tokens, dim)
            out = out + functional.pad(seen, (0, 0, 0, 0, back, 0))
        return out

    def _conv(self, x: Tensor, grid: int, back: int) -> Tensor:
        """Frames [F, N, d] under the tap `back` steps before the present."""
        image = x.reshape(len(x), grid, grid, -1).permute(0, 3, 1, 2)  # [F, d, g, g], channels last
        weight = self.weight[:, :, 2 - back].contiguous(memory_format=torch.channels_last)
        seen = functional.conv2d(image, weight, padding=1, groups=len(weight))
        return seen.permute(0, 2, 3, 1).flatten(1, 2)
