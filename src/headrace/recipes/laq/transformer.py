"""Blocks of position convolution, attention and feed-forward, across space or across time."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from headrace.recipes.laq.attention import CrossAttention, SelfAttention
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.feedforward import FeedForward
from headrace.recipes.laq.peg import PositionConvolution

__all__ = ["Block", "Transformer"]


class Block(nn.Module):
    """Four residual parts; the cross-attention only where there is an action to look at."""

    def __init__(self, config: LaqConfig, across: Literal["space", "time"], cross: bool) -> None:
        super().__init__()
        sizes = config.dim, config.heads, config.head_dim
        self.across = across
        self.peg = PositionConvolution(config.dim)
        self.attention = SelfAttention(*sizes)
        self.cross = CrossAttention(*sizes) if cross else None
        self.feedforward = FeedForward(config.dim, config.inner)

    def forward(self, x: Tensor, bias: Tensor | None, context: Tensor | None) -> Tensor:
        """x [B, T, N, d], bias [heads, N, N], context [B, C, d]."""
        x = x + self.peg(x)
        if self.across == "space":
            x = x + self.attention.across_space(x, bias)
        else:
            x = x + self.attention.across_time(x)
        if self.cross is not None:
            x = x + self.cross(x, context)
        out: Tensor = x + self.feedforward(x)
        return out


class Transformer(nn.Module):
    """A stack of blocks and a norm."""

    def __init__(
        self,
        config: LaqConfig,
        depth: int,
        across: Literal["space", "time"],
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, across, cross) for _ in range(depth))
        self.norm = nn.LayerNorm(config.dim, bias=False)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, context: Tensor | None = None
    ) -> Tensor:
        """x [B, T, N, d]; the same shape comes out."""
        for block in self.blocks:
            x = block(x, bias, context)
        out: Tensor = self.norm(x)
        return out
