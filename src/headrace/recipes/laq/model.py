"""The latent-action model: two frames to a few codes, and from frame t and codes to frame t+k."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.errors import UsageError
from headrace.recipes.laq.blocks import (
    Block,
    Decoder,
    DeltaNetwork,
    DinoProjection,
    Encoder,
    PixelProjection,
    PositionBias,
    decoder_sizes,
    patches,
    unpatches,
)
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.nsvq import Nsvq, Quantized
from headrace.recipes.laq.teachers import Teachers, load_teachers


@dataclass(frozen=True, slots=True)
class LaqOutput:
    """What the model makes of a batch."""

    loss: Tensor  #: sum of `parts`
    parts: dict[str, Tensor]  #: loss of each decoder: feature, pixel, aux, flow
    indices: Tensor  #: int64 [B, codes]
    usage: Tensor  #: int64 [K] how often each code is chosen in this batch
    perplexity: Tensor  #: exp(entropy) of the usage
    patch: int  #: side of a patch
    predicted: Tensor | None = field(repr=False)  #: [B, N, patch * patch * 3] pixels of t+k

    @property
    def recon(self) -> Tensor | None:
        """The predicted frame t+k [B, 3, H, W]; None without a pixel or aux decoder."""
        return None if self.predicted is None else unpatches(self.predicted, self.patch)


class Laq(nn.Module):
    """The model. `Laq.build` also loads its teachers, and trains without those that are missing."""

    def __init__(self, config: LaqConfig, teachers: Teachers | None = None) -> None:
        super().__init__()
        teachers = teachers or Teachers()
        teachers.check(config)
        self.config = config
        self.teachers = teachers
        self.pixels = PixelProjection(config)
        self.dino = DinoProjection(config) if config.features == "dino" else None
        self.bias = PositionBias(config.grid, config.dim, config.heads)
        self.encoder = Encoder(config)
        self.delta = DeltaNetwork(config)
        self.nsvq = Nsvq(config)
        self.action = nn.Linear(config.code_dim, config.dim)
        sizes = decoder_sizes(config).items()
        self.decoders = nn.ModuleDict({name: Decoder(config, *size) for name, size in sizes})
        if config.features == "dino" and set(self.decoders) == {"feature"}:
            # Projected pixels are unused then, and DDP fails on parameters without gradients.
            self.pixels.requires_grad_(False)

    @classmethod
    def build(cls, config: LaqConfig) -> Laq:
        """The model with the teachers whose files exist; its `config` says which those are."""
        config, teachers = load_teachers(config)
        return cls(config, teachers)

    def compile_blocks(self) -> None:
        """Compile the blocks, which do nearly all of the work.

        They are alike, so torch compiles a handful of functions instead of one large graph.
        """
        for module in self.modules():
            if isinstance(module, Block):
                module.compile()

    def forward(self, frames: Tensor) -> LaqOutput:
        """frames [B, 3, 2, H, W]: uint8, or floats in [0, 1]."""
        seen = self._see(frames)
        quantized = self._quantize(seen)
        action = self.action(quantized.vectors)  # [B, codes, d]
        predicted = {name: self._decode(name, seen, action) for name in self.decoders}
        parts = {
            name: functional.mse_loss(value.float(), self._target(name, frames, seen).float())
            for name, value in predicted.items()
        }
        shown = predicted.get("pixel", predicted.get("aux"))
        return LaqOutput(
            loss=torch.stack(list(parts.values())).sum(),
            parts=parts,
            indices=quantized.indices,
            usage=quantized.usage,
            perplexity=quantized.perplexity,
            patch=self.config.patch,
            predicted=None if shown is None else shown.detach(),
        )

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """The latent actions of windows: int64 [B, codes]. Code usage is not counted."""
        return self.nsvq.nearest(self._delta(self._see(frames)))

    @torch.no_grad()
    def imagine(self, frames: Tensor, indices: Tensor) -> Tensor:
        """Frame t+k [B, 3, H, W] predicted for the action `indices` taken at t."""
        name = "pixel" if "pixel" in self.decoders else "aux"
        if name not in self.decoders:
            raise UsageError(
                "the model has no decoder that predicts pixels",
                remedy="Set aux_decoder or pixel_decoder",
            )
        action = self.action(self.nsvq.codebook[indices])
        predicted = self._decode(name, self._see(frames), action)
        return unpatches(predicted.float(), self.config.patch)

    @torch.no_grad()
    def feature_error(self, frames: Tensor, indices: Tensor) -> Tensor | None:
        """Mean squared error of the tokens of t+k predicted under the action `indices`.

        None without a feature decoder.
        """
        if "feature" not in self.decoders:
            return None
        seen = self._see(frames)
        predicted = self._decode("feature", seen, self.action(self.nsvq.codebook[indices]))
        return functional.mse_loss(predicted.float(), seen.tokens[:, 1].float())

    def _see(self, frames: Tensor) -> _Seen:
        self.config.check_frames(tuple(frames.shape))
        values = _unit_range(patches(frames, self.config.patch))
        pixels = self.pixels(values)
        tokens = pixels
        if self.dino is not None:
            tokens = self.dino(self.teachers.features(_unit_range(frames)))
        return _Seen(values, pixels, tokens, self.bias())

    def _delta(self, seen: _Seen) -> Tensor:
        encoded = self.encoder(seen.tokens, seen.bias)  # [B, 2, N, d]
        # Differences of frames, distances to codes and error norms need full precision.
        with torch.autocast(encoded.device.type, enabled=False):
            delta: Tensor = self.delta(encoded.float())  # [B, codes, code_dim]
        return delta

    def _quantize(self, seen: _Seen) -> Quantized:
        delta = self._delta(seen)
        with torch.autocast(delta.device.type, enabled=False):
            quantized: Quantized = self.nsvq(delta)
        return quantized

    def _decode(self, name: str, seen: _Seen, action: Tensor) -> Tensor:
        context = seen.tokens if name == "feature" else seen.pixels
        action = action.detach() if name == "aux" else action
        predicted: Tensor = self.decoders[name](context[:, 0], action, seen.bias)
        return predicted

    def _target(self, name: str, frames: Tensor, seen: _Seen) -> Tensor:
        """What the decoder should predict of frame t+k, [B, N, out]."""
        if name == "feature":
            return seen.tokens[:, 1].detach()
        if name == "flow":
            flow = self.teachers.flow(_unit_range(frames))  # [B, 2, H, W] in pixels
            return patches(flow.unsqueeze(2), self.config.patch)[:, 0] / self.config.patch
        return seen.values[:, 1]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch before it is encoded."""

    values: Tensor  #: [B, 2, N, patch * patch * 3] pixels in [0, 1]
    pixels: Tensor  #: [B, 2, N, d] their projection
    tokens: Tensor  #: [B, 2, N, d] what the encoder works on
    bias: Tensor  #: [heads, N, N]


def _unit_range(values: Tensor) -> Tensor:
    """uint8 as floats in [0, 1]; floats as they are."""
    return values.float().div_(255) if values.dtype == torch.uint8 else values


def trainable_parameters(model: nn.Module) -> int:
    """The number of parameters that training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@dataclass(frozen=True, slots=True)
class Transfer:
    """The effect of applying actions to other frames than their own."""

    transfer_mse: float  #: between frame t+k and its prediction under another sample's action
    self_mse: float  #: the same under its own action
    moved: Tensor  #: [B, 3, H, W] prediction under the other's action
    feature_ratio: float | None = None  #: as `ratio`, of tokens instead of pixels

    @property
    def ratio(self) -> float:
        """Above 1 the action matters: another's action predicts the frame less well."""
        return self.transfer_mse / max(self.self_mse, 1e-12)


def latent_transfer(model: Laq, frames: Tensor, shift: int = 1) -> Transfer:
    """Give each sample i the action of sample i + shift (around the batch).

    frames [B, 3, 2, H, W] on the model's device. The model is in evaluation mode meanwhile. Where
    a feature decoder teaches the codes, its ratio shows an effect long before the pictures do.
    """
    was_training = model.training
    model.eval()
    try:
        indices = model.encode(frames)  # [B, codes]
        own = model.imagine(frames, indices)
        others = indices.roll(-shift, dims=0)
        moved = model.imagine(frames, others)
        mine, theirs = (model.feature_error(frames, codes) for codes in (indices, others))
    finally:
        model.train(was_training)
    last = _unit_range(frames[:, :, -1])
    own_mse, moved_mse = ((made - last).square().mean().item() for made in (own, moved))
    ratio = None if mine is None or theirs is None else theirs.item() / max(mine.item(), 1e-12)
    return Transfer(moved_mse, own_mse, moved, ratio)
