"""Floating-point operations of a training step, counted from the shapes: the M of MFU.

A multiplication and an addition are two. Only matrix products, attention and convolutions count;
a backward pass costs one product for the gradient of the weight and one for that of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.recipes.laq.blocks import decoder_sizes
from headrace.recipes.laq.config import FRAMES, LaqConfig

__all__ = ["StepFlops", "step_flops"]

#: Taps of the position convolution that meet a frame, for each of `FRAMES` frames and for one.
_PLANE = 9


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Operations of one training step of a batch."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        """Of the whole step. The optimizer's few operations a weight do not count."""
        return self.forward + self.backward

    def utilisation(self, step_s: float, peak: float) -> float:
        """MFU: the share of `peak` operations a second, at `step_s` seconds a step."""
        return self.total / step_s / peak


def step_flops(config: LaqConfig, batch_size: int, teachers: bool = True) -> StepFlops:
    """Operations of a training step; those of a DINO teacher's look included, RAFT's not."""
    tokens, dim = config.tokens, config.dim
    # Forward operations for one sample, by whether the gradient of their input is needed too.
    trained = _product(FRAMES * tokens, config.patch_values, dim)  # the norm before it is trained
    space = _peg(config, FRAMES) + _spatial(config, FRAMES) + _feedforward(config, FRAMES)
    time = _peg(config, FRAMES) + _temporal(config) + _feedforward(config, FRAMES)
    trained += config.spatial_depth * space + config.temporal_depth * time
    trained += _delta(config) + _product(config.codes, config.code_dim, dim)
    first = _product(FRAMES * tokens, 384, dim) if config.features == "dino" else 0
    for name, (depth, out) in decoder_sizes(config).items():
        block = _peg(config, 1) + _spatial(config, 1) + _feedforward(config, 1)
        looked = 2 * _product(config.codes, dim, config.heads * config.head_dim)  # keys, values
        trained += depth * (block + _cross(config) - looked) + _product(tokens, dim, out)
        if name == "aux":  # its action is detached
            first += depth * looked
        else:
            trained += depth * looked
    offsets = (2 * config.grid - 1) ** 2
    once = _product(offsets, dim, dim) + _product(offsets, dim, config.heads)
    once_first = _product(offsets, 2, dim)
    frozen = _dino(config) if teachers and config.features == "dino" else 0
    forward = batch_size * (trained + first + frozen) + once + once_first
    backward = batch_size * (2 * trained + first) + 2 * once + once_first
    return StepFlops(forward, backward)


def _product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def _peg(config: LaqConfig, frames: int) -> int:
    taps = sum(min(3, frame + 1) for frame in range(frames))  # earlier frames that a frame sees
    return 2 * _PLANE * taps * config.tokens * config.dim


def _attended(config: LaqConfig, queries: int, keys: int) -> int:
    """Logits and sums of values, for all heads."""
    return 2 * _product(queries, config.head_dim * config.heads, keys)


def _projections(config: LaqConfig, queries: int, keys: int) -> int:
    width = config.heads * config.head_dim
    return 2 * _product(queries, config.dim, width) + 2 * _product(keys, config.dim, width)


def _spatial(config: LaqConfig, frames: int) -> int:
    tokens = config.tokens
    return frames * (_projections(config, tokens, tokens) + _attended(config, tokens, tokens))


def _temporal(config: LaqConfig) -> int:
    """The attention between two frames is elementwise and does not count."""
    return _projections(config, FRAMES * config.tokens, FRAMES * config.tokens)


def _cross(config: LaqConfig, null: int = 2) -> int:
    projections = _projections(config, config.tokens, config.codes)
    return projections + _attended(config, config.tokens, config.codes + null)


def _feedforward(config: LaqConfig, frames: int) -> int:
    inner = config.inner
    return 3 * _product(frames * config.tokens, config.dim, inner)


def _delta(config: LaqConfig) -> int:
    dim, half = config.code_dim, (config.grid + 1) // 2
    rows, columns = config.code_grid
    kernel = (half - rows + 1) * (half - columns + 1)
    convolutions = _product(half**2, 9 * dim, dim) + _product(config.codes, kernel * dim, dim)
    return FRAMES * (_product(config.tokens, config.dim, dim) + convolutions)


def _dino(config: LaqConfig) -> int:
    """ViT-S/16: 12 blocks of width 384 over the patches, a class token and four registers."""
    patches = (config.image_size // 16) ** 2
    tokens, width = patches + 5, 384
    block = 12 * _product(tokens, width, width) + 2 * _product(tokens, width, tokens)
    return FRAMES * (_product(patches, 3 * 16**2, width) + 12 * block)
