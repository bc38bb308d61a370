"""Floating-point operations of a training step, counted from the shapes: the M of MFU.

A multiplication and an addition are two; only matrix products count, and a backward pass is two
forward ones. Attention counts for what a causal model needs, which is half of all pairs; what is
computed again to save memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.recipes.network.config import ModelConfig

__all__ = ["StepFlops", "step_flops"]


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Operations of one training step of a batch."""

    weights: int  #: products with weights, forward and backward
    attention: int  #: products of tokens with tokens

    @property
    def total(self) -> int:
        """Of the whole step."""
        return self.weights + self.attention

    def utilisation(self, step_s: float, peak: float) -> float:
        """MFU: the share of `peak` operations a second, at `step_s` seconds a step."""
        return self.total / step_s / peak


def step_flops(config: ModelConfig, batch_size: int) -> StepFlops:
    """Operations of a step over sequences of full length."""
    layer = 4 * config.dim * config.width + 3 * config.dim * config.inner
    products = config.depth * layer + config.dim * config.vocabulary
    pairs = config.length * config.length // 2
    tokens = batch_size * config.length
    return StepFlops(
        weights=3 * 2 * tokens * products,
        attention=3 * 2 * 2 * batch_size * pairs * config.width * config.depth,
    )
