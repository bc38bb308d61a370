"""A bias for every pair of patches, from the distance between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["PositionBias", "signed_log"]


def signed_log(delta: Tensor) -> Tensor:
    """Distances squeezed, signs kept: near patches are told apart better than far ones."""
    return delta.sign() * delta.abs().log1p()


class PositionBias(nn.Module):
    """An MLP from the offset between two patches to one number a head.

    Only the (2g-1)^2 different offsets go through the MLP; the pairs look theirs up.
    """

    def __init__(self, grid: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, hidden),
            nn.LeakyReLU(0.1),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(0.1),
            nn.Linear(hidden, heads),
        )
        span = torch.arange(1 - grid, grid)
        offsets = torch.cartesian_prod(span, span).float()  # [(2g-1)^2, 2] rows, columns
        place = torch.cartesian_prod(torch.arange(grid), torch.arange(grid))  # [g*g, 2]
        delta = place[:, None] - place[None] + grid - 1  # [g*g, g*g, 2] from key to query, >= 0
        self.offsets: Tensor
        self.pairs: Tensor
        self.register_buffer("offsets", signed_log(offsets), persistent=False)
        pairs = delta[..., 0] * (2 * grid - 1) + delta[..., 1]
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self) -> Tensor:
        """Bias [heads, g*g, g*g] to add to the logits of queries and keys."""
        table: Tensor = self.net(self.offsets)  # [(2g-1)^2, heads]
        return table[self.pairs].permute(2, 0, 1)
