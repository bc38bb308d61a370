"""The gated feed-forward part of a block (GEGLU), without biases."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FeedForward"]

#: Tensor cores need rows of a multiple of 16 bytes: 8 numbers in bfloat16. 2730 is none, and the
#: matrix products of such a width take the slow kernels.
_ALIGN = 8


class FeedForward(nn.Module):
    """x -> out(value(x) * gelu(gate(x))), after a norm.

    The weights are padded with zeros to an aligned width while they are used: padded columns
    are zero and so add nothing, and what is stored has the width asked for.
    """

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, bias=False)
        self.inside = nn.Parameter(torch.empty(2, inner, dim))  # value and gate
        self.out = nn.Parameter(torch.empty(dim, inner))
        for weight, fan_in in ((self.inside, dim), (self.out, inner)):
            nn.init.uniform_(weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        self._pad = -inner % _ALIGN

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d]."""
        inside = functional.pad(self.inside, (0, 0, 0, self._pad)) if self._pad else self.inside
        out = functional.pad(self.out, (0, self._pad)) if self._pad else self.out
        value, gate = functional.linear(self.norm(x), inside.flatten(0, 1)).chunk(2, dim=-1)
        return functional.linear(value * functional.gelu(gate), out)
