"""From frames to tokens that know their frame and the other one."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.transformer import Transformer

__all__ = ["DinoProjection", "Encoder", "PixelProjection", "patches", "unpatches"]


def patches(frames: Tensor, patch: int) -> Tensor:
    """Frames [B, 3, T, H, W] cut up: [B, T, N, patch * patch * 3], rows of patches first."""
    batch, colours, time, height, width = frames.shape
    cut = frames.reshape(batch, colours, time, height // patch, patch, width // patch, patch)
    ordered = cut.permute(0, 2, 3, 5, 4, 6, 1)  # [B, T, rows, columns, patch, patch, 3]
    return ordered.reshape(batch, time, -1, patch * patch * colours)


def unpatches(values: Tensor, patch: int, channels: int = 3) -> Tensor:
    """Patches [B, N, patch * patch * channels] put together: [B, channels, H, W]."""
    batch, tokens, _ = values.shape
    grid = int(tokens**0.5)
    cut = values.reshape(batch, grid, grid, patch, patch, channels).permute(0, 5, 1, 3, 2, 4)
    return cut.reshape(batch, channels, grid * patch, grid * patch)


class PixelProjection(nn.Module):
    """Patches to tokens: norm, linear, norm."""

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(config.patch_values),
            nn.Linear(config.patch_values, config.dim),
            nn.LayerNorm(config.dim),
        )

    def forward(self, values: Tensor) -> Tensor:
        """values [B, T, N, patch * patch * 3] in [0, 1]; tokens [B, T, N, d]."""
        tokens: Tensor = self.net(values)
        return tokens


class DinoProjection(nn.Module):
    """Features of the frozen teacher, pooled to the grid of patches, to tokens."""

    def __init__(self, config: LaqConfig, width: int = 384) -> None:
        super().__init__()
        self.grid = config.grid
        self.project = nn.Linear(width, config.dim)

    def forward(self, features: Tensor) -> Tensor:
        """features [B, T, 384, h, w]; tokens [B, T, N, d]."""
        pooled = functional.adaptive_avg_pool2d(
            features.flatten(0, 1), self.grid
        )  # [B*T, 384, g, g]
        tokens: Tensor = self.project(pooled.flatten(2).transpose(1, 2))
        return tokens.reshape(*features.shape[:2], *tokens.shape[1:])


class Encoder(nn.Module):
    """A transformer across the patches of each frame, then one across the frames."""

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        self.spatial = Transformer(config, config.spatial_depth, "space")
        self.temporal = Transformer(config, config.temporal_depth, "time")

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        """tokens [B, T, N, d], bias [heads, N, N]; the same shape comes out."""
        seen: Tensor = self.temporal(self.spatial(tokens, bias))
        return seen
