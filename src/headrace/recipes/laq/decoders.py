"""What the action is good for: frame t and the action tell something about frame t+k."""

from __future__ import annotations

from torch import Tensor, nn

from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.transformer import Transformer

__all__ = ["Decoder", "make_decoders", "outputs"]


class Decoder(nn.Module):
    """Tokens of frame t look at the action; a linear layer reads the prediction off them."""

    def __init__(self, config: LaqConfig, depth: int, out: int) -> None:
        super().__init__()
        self.transformer = Transformer(config, depth, "space", cross=True)
        self.read = nn.Linear(config.dim, out)

    def forward(self, context: Tensor, action: Tensor, bias: Tensor) -> Tensor:
        """context [B, N, d] of frame t, action [B, codes, d], bias [heads, N, N]: [B, N, out]."""
        seen = self.transformer(context.unsqueeze(1), bias, action)  # [B, 1, N, d]
        prediction: Tensor = self.read(seen.squeeze(1))
        return prediction


def outputs(config: LaqConfig) -> dict[str, tuple[int, int]]:
    """The enabled decoders by name: (depth, numbers predicted for each patch)."""
    every = {
        "feature": (config.feature_decoder, config.decoder_depth, config.dim),
        "pixel": (config.pixel_decoder, config.decoder_depth, config.patch_values),
        "aux": (config.aux_decoder, config.decoder_depth, config.patch_values),
        "flow": (config.flow_decoder, config.flow_depth, 2 * config.patch**2),
    }
    return {name: (depth, out) for name, (on, depth, out) in every.items() if on}


def make_decoders(config: LaqConfig) -> nn.ModuleDict:
    """The enabled decoders by name."""
    made = {name: Decoder(config, depth, out) for name, (depth, out) in outputs(config).items()}
    return nn.ModuleDict(made)
