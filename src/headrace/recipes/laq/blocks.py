"""What the model is built of: patches, attention, position, feed-forward, transformer, heads.

Tensors are [B, T, N, d]: batch, frames, patches of a square grid in row order, width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.recipes.laq.config import LaqConfig

_LOGIT_SCALE = 8.0
#: Added to the mean square of a vector: far below any real one, and keeps zero at zero.
_EPS = 1e-24
#: Tensor cores need rows of a multiple of 16 bytes: 8 numbers in bfloat16. A width of 2730 is not
#: one, and its matrix products would take the slow kernels.
_ALIGN = 8


# -- patches and tokens ------------------------------------------------------------------------


def patches(frames: Tensor, patch: int) -> Tensor:
    """Cut frames [B, 3, T, H, W] into [B, T, N, patch * patch * 3]."""
    batch, colours, time, height, width = frames.shape
    cut = frames.reshape(batch, colours, time, height // patch, patch, width // patch, patch)
    ordered = cut.permute(0, 2, 3, 5, 4, 6, 1)  # [B, T, rows, columns, patch, patch, 3]
    return ordered.reshape(batch, time, -1, patch * patch * colours)


def unpatches(values: Tensor, patch: int, channels: int = 3) -> Tensor:
    """Reassemble patches [B, N, patch * patch * channels] into [B, channels, H, W]."""
    batch, tokens, _ = values.shape
    grid = int(tokens**0.5)
    cut = values.reshape(batch, grid, grid, patch, patch, channels).permute(0, 5, 1, 3, 2, 4)
    return cut.reshape(batch, channels, grid * patch, grid * patch)


class PixelProjection(nn.Module):
    """Patches [B, T, N, patch * patch * 3] in [0, 1] to tokens."""

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(config.patch_values),
            nn.Linear(config.patch_values, config.dim),
            nn.LayerNorm(config.dim),
        )

    def forward(self, values: Tensor) -> Tensor:
        tokens: Tensor = self.net(values)
        return tokens


class DinoProjection(nn.Module):
    """Features [B, T, 384, h, w] of the frozen teacher, pooled to the grid, to tokens."""

    def __init__(self, config: LaqConfig, width: int = 384) -> None:
        super().__init__()
        self.grid = config.grid
        self.project = nn.Linear(width, config.dim)

    def forward(self, features: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool2d(features.flatten(0, 1), self.grid)
        tokens: Tensor = self.project(pooled.flatten(2).transpose(1, 2))
        return tokens.reshape(*features.shape[:2], *tokens.shape[1:])


# -- position ----------------------------------------------------------------------------------


class PositionBias(nn.Module):
    """An attention bias [heads, N, N]: an MLP of the offset between two patches.

    The offset is squeezed by a signed logarithm, so that near patches are told apart better than
    far ones. Only the (2g-1)^2 different offsets go through the MLP; pairs look theirs up.
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
        squeezed = offsets.sign() * offsets.abs().log1p()
        self.register_buffer("offsets", squeezed, persistent=False)
        pairs = delta[..., 0] * (2 * grid - 1) + delta[..., 1]
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self) -> Tensor:
        table: Tensor = self.net(self.offsets)  # [(2g-1)^2, heads]
        return table[self.pairs].permute(2, 0, 1)


class PositionConvolution(nn.Module):
    """A depthwise 3 x 3 x 3 convolution, causal in time, as one 2-D convolution per past frame.

    A frame sees itself and the two frames before it, and one patch further each way in space.
    A window has one or two frames, so at most two of the three taps in time ever meet a frame: a
    3-D convolution would multiply the padding, and depthwise 3-D convolutions have no good kernels.
    The 2-D convolution is computed in one of two equivalent ways:

    - "conv": `conv2d` of a channels-last image, without a copy.
    - "shift": the sum of nine shifted images. Nine passes over memory in eager mode, one when
      torch compiles it.

    "auto" takes "shift" when torch is compiling. `benchmarks/laq_step.py` measures both.
    """

    method: Literal["auto", "conv", "shift"] = "auto"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, 3, 3, 3))  # [d, 1, time, rows, columns]
        nn.init.uniform_(self.weight, -1 / math.sqrt(27), 1 / math.sqrt(27))

    def forward(self, x: Tensor) -> Tensor:
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
        """Apply the tap `back` frames before the present to images [F, g, g, d]."""
        weight = self.weight[:, 0, 2 - back]  # [d, 3, 3]
        if self.method == "shift" or (self.method == "auto" and torch.compiler.is_compiling()):
            return _shifted_sum(images, weight)
        weight = weight.unsqueeze(1).contiguous(memory_format=torch.channels_last)
        seen = functional.conv2d(images.permute(0, 3, 1, 2), weight, padding=1, groups=len(weight))
        return seen.permute(0, 2, 3, 1)


def _shifted_sum(images: Tensor, weight: Tensor) -> Tensor:
    """Convolve images [F, g, g, d] with weight [d, 3, 3], one shift at a time."""
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


# -- attention: logits are 8 * (q / |q| * a) . (k / |k| * b) with learned vectors a and b --------


def _unit(x: Tensor, scale: Tensor) -> Tensor:
    """Scale vectors to length one times a learned scale, in the precision they come in.

    An RMS norm does that up to a factor, in one kernel that sums in float32.
    """
    size = x.shape[-1]
    return functional.rms_norm(x, (size,), (scale * size**-0.5).to(x.dtype), _EPS).to(x.dtype)


def angle_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention of unit queries to unit keys, [..., S, head_dim]; `bias` adds to the logits."""
    if bias is not None:
        bias = bias.to(q.dtype)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=_LOGIT_SCALE)


def pair_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`angle_attention` over two positions, [B, 2, ..., head_dim] along the second axis.

    A softmax over two is a sigmoid of the difference. Attention kernels work on tiles of 64 or
    128 positions and would waste nearly all of them; this is elementwise and needs no transpose.
    """
    k0, k1 = k.unbind(1)
    v0, v1 = v.unbind(1)
    ahead = (q * (k1 - k0).unsqueeze(1)).sum(-1, keepdim=True, dtype=torch.float32)  # logit 1 - 0
    share = torch.sigmoid(_LOGIT_SCALE * ahead).to(v.dtype)
    return torch.lerp(v0.unsqueeze(1), v1.unsqueeze(1), share)


class SelfAttention(nn.Module):
    """Pre-norm self-attention, across the patches of a frame or across frames."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.norm = nn.LayerNorm(dim, bias=False)
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.q_scale = nn.Parameter(torch.ones(head_dim))
        self.k_scale = nn.Parameter(torch.ones(head_dim))
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, T, N, heads, head_dim]."""
        qkv: Tensor = self.to_qkv(self.norm(x))
        q, k, v = qkv.view(*x.shape[:-1], 3, self.heads, self.head_dim).unbind(-3)
        return _unit(q, self.q_scale), _unit(k, self.k_scale), v

    def across_space(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Each patch attends to the patches of its frame; `bias` [heads, N, N]."""
        q, k, v = (y.flatten(0, 1).transpose(1, 2) for y in self._project(x))  # [B*T, H, N, hd]
        seen = angle_attention(q, k, v, bias).transpose(1, 2)  # [B*T, N, H, hd]
        out: Tensor = self.to_out(seen.reshape(*x.shape[:3], -1))
        return out

    def across_time(self, x: Tensor) -> Tensor:
        """Each patch attends to itself in all frames."""
        q, k, v = self._project(x)  # [B, T, N, H, hd]
        if x.shape[1] == 2:
            seen = pair_attention(q, k, v)
        else:
            q, k, v = (y.movedim(1, 3) for y in (q, k, v))  # [B, N, H, T, hd]
            seen = angle_attention(q, k, v).movedim(3, 1)
        out: Tensor = self.to_out(seen.flatten(3))
        return out


class CrossAttention(nn.Module):
    """Pre-norm attention of x [B, 1, N, d] to a context [B, C, d].

    Learned null keys and values beside the context let a patch attend to nothing.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, null: int = 2) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.norm = nn.LayerNorm(dim, bias=False)
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * head_dim, bias=False)
        self.null_kv = nn.Parameter(torch.randn(2, null, heads, head_dim))
        self.q_scale = nn.Parameter(torch.ones(head_dim))
        self.k_scale = nn.Parameter(torch.ones(head_dim))
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        heads = self.heads, self.head_dim
        q: Tensor = self.to_q(self.norm(x.squeeze(1))).view(len(x), -1, *heads)
        kv: Tensor = self.to_kv(context).view(len(x), -1, 2, *heads)
        null = self.null_kv.to(kv.dtype).unsqueeze(1).expand(-1, len(kv), -1, -1, -1)
        k, v = (torch.cat([null[i], kv[:, :, i]], dim=1) for i in (0, 1))  # [B, null + C, H, hd]
        q, k = _unit(q, self.q_scale), _unit(k, self.k_scale)
        seen = angle_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        out: Tensor = self.to_out(seen.transpose(1, 2).flatten(2))
        return out.unsqueeze(1)


# -- blocks and transformers -------------------------------------------------------------------


class FeedForward(nn.Module):
    """The gated feed-forward (GEGLU): x -> out(value(x) * gelu(gate(x))), after a norm, no biases.

    While in use the weights are padded with zeros to an aligned width. Padded columns add nothing,
    and what is stored has the configured width.
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
        inside = functional.pad(self.inside, (0, 0, 0, self._pad)) if self._pad else self.inside
        out = functional.pad(self.out, (0, self._pad)) if self._pad else self.out
        value, gate = functional.linear(self.norm(x), inside.flatten(0, 1)).chunk(2, dim=-1)
        return functional.linear(value * functional.gelu(gate), out)


class Block(nn.Module):
    """Position, attention, cross-attention (in decoders) and feed-forward, all residual."""

    def __init__(self, config: LaqConfig, across: Literal["space", "time"], cross: bool) -> None:
        super().__init__()
        sizes = config.dim, config.heads, config.head_dim
        self.across = across
        self.peg = PositionConvolution(config.dim)
        self.attention = SelfAttention(*sizes)
        self.cross = CrossAttention(*sizes) if cross else None
        self.feedforward = FeedForward(config.dim, config.inner)

    def forward(self, x: Tensor, bias: Tensor | None, context: Tensor | None) -> Tensor:
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
        for block in self.blocks:
            x = block(x, bias, context)
        out: Tensor = self.norm(x)
        return out


class Encoder(nn.Module):
    """A transformer across the patches of each frame, then one across the frames."""

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        self.spatial = Transformer(config, config.spatial_depth, "space")
        self.temporal = Transformer(config, config.temporal_depth, "time")

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        encoded: Tensor = self.temporal(self.spatial(tokens, bias))
        return encoded


class DeltaNetwork(nn.Module):
    """The change between the first and the last frame: tokens to [B, codes, code_dim].

    Each frame becomes `codes` vectors; the change is their difference. A linear layer, a 3 x 3
    convolution of stride 2 (grid g to g' = ceil(g / 2)), ReLU, and a convolution without padding
    whose kernel is as large as leaves the grid of codes: g' - rows + 1 by g' - columns + 1. For
    8 x 8 patches that is 4 for one code, (3, 4) for two and 3 for four.
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
        ends = tokens[:, :: tokens.shape[1] - 1]  # [B, 2, N, d]
        short: Tensor = self.project(ends)  # [B, 2, N, c]
        image = short.reshape(-1, self.grid, self.grid, short.shape[-1]).permute(0, 3, 1, 2)
        codes: Tensor = self.net(image).flatten(2).transpose(1, 2)  # [B*2, codes, c]
        pairs = codes.reshape(len(tokens), 2, *codes.shape[1:])
        return pairs[:, 1] - pairs[:, 0]


class Decoder(nn.Module):
    """Predicts something about frame t+k, [B, N, out], from frame t [B, N, d] and the action."""

    def __init__(self, config: LaqConfig, depth: int, out: int) -> None:
        super().__init__()
        self.transformer = Transformer(config, depth, "space", cross=True)
        self.read = nn.Linear(config.dim, out)

    def forward(self, context: Tensor, action: Tensor, bias: Tensor) -> Tensor:
        seen = self.transformer(context.unsqueeze(1), bias, action)  # [B, 1, N, d]
        prediction: Tensor = self.read(seen.squeeze(1))
        return prediction


def decoder_sizes(config: LaqConfig) -> dict[str, tuple[int, int]]:
    """The enabled decoders by name: (depth, numbers predicted for each patch)."""
    every = {
        "feature": (config.feature_decoder, config.decoder_depth, config.dim),
        "pixel": (config.pixel_decoder, config.decoder_depth, config.patch_values),
        "aux": (config.aux_decoder, config.decoder_depth, config.patch_values),
        "flow": (config.flow_decoder, config.flow_depth, 2 * config.patch**2),
    }
    return {name: (depth, out) for name, (on, depth, out) in every.items() if on}
