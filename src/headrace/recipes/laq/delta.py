"""From the tokens of two frames to the change between them: a few short vectors."""

from __future__ import annotations

from torch import Tensor, nn

from headrace.recipes.laq.config import LaqConfig

__all__ = ["DeltaNetwork"]


class DeltaNetwork(nn.Module):
    """Each frame becomes `codes` vectors; the change is their difference.

    A linear layer, a convolution 3 x 3 of stride 2 (grid g to g' = ceil(g / 2)), ReLU, and a
    convolution without padding whose kernel is as large as leaves the grid of codes: g' - rows + 1
    by g' - columns + 1. For 8 x 8 patches that is 4 for one code, (3, 4) for two and 3 for four;
    another grid gets other kernels and the same codes.
    """

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        dim, self.grid = config.code_dim, config.grid
        half = (config.grid + 1) // 2
        rows, columns = config.code_grid
        self.kernel = (half - rows + 1, half - columns + 1)
        self.project = nn.Linear(config.dim, dim)
        self.net = nn.Sequential(
            nn.Conv2d(dim, dim, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(dim, dim, self.kernel),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T, N, d]; delta [B, codes, code_dim] from the first frame to the last."""
        ends = tokens[:, :: tokens.shape[1] - 1]  # [B, 2, N, d]
        short: Tensor = self.project(ends)  # [B, 2, N, c]
        image = short.reshape(-1, self.grid, self.grid, short.shape[-1]).permute(0, 3, 1, 2)
        codes: Tensor = self.net(image).flatten(2).transpose(1, 2)  # [B*2, codes, c]
        pairs = codes.reshape(len(tokens), 2, *codes.shape[1:])
        return pairs[:, 1] - pairs[:, 0]
