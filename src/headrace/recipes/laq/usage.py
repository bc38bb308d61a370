"""Numbers on how the codes are used, and on what an action does to another frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.recipes.laq.model import Laq

__all__ = [
    "CodeUsage",
    "SequenceUsage",
    "Transfer",
    "code_usage",
    "latent_transfer",
    "sequence_usage",
]


@dataclass(frozen=True, slots=True)
class CodeUsage:
    """How often each code is used."""

    counts: NDArray[np.int64]  #: [K]
    used: int  #: codes that are used at all
    utilisation: float  #: the same as a share of the codebook
    entropy: float  #: of the use, in bits: log2(K) when it is even


@dataclass(frozen=True, slots=True)
class SequenceUsage:
    """How often each sequence of codes is used."""

    sequences: NDArray[np.int64]  #: [unique, codes], most used first
    counts: NDArray[np.int64]  #: [unique]
    unique: int
    possible: int  #: sequences that the codebook allows
    total: int  #: samples
    entropy: float  #: in bits


@dataclass(frozen=True, slots=True)
class Transfer:
    """An action taken in another frame than its own."""

    transfer_mse: float  #: between frame t+k and frame t under another sample's action
    self_mse: float  #: the same under its own action
    moved: Any  #: tensor [B, 3, H, W]: frame t under the other's action
    feature_ratio: float | None = None  #: as `ratio`, of tokens instead of pixels

    @property
    def ratio(self) -> float:
        """Above 1 the action matters: another's action predicts the frame less well."""
        return self.transfer_mse / max(self.self_mse, 1e-12)


def code_usage(indices: NDArray[Any], codebook_size: int) -> CodeUsage:
    """Usage of the codes in indices [N, codes]."""
    counts = np.bincount(indices.reshape(-1).astype(np.int64), minlength=codebook_size)
    used = int((counts > 0).sum())
    return CodeUsage(counts, used, used / codebook_size, _entropy(counts))


def sequence_usage(indices: NDArray[Any], codebook_size: int) -> SequenceUsage:
    """Usage of the sequences in indices [N, codes]; ties in the order of their codes."""
    total, codes = indices.shape
    sequences, counts = np.unique(indices.astype(np.int64), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    possible = codebook_size**codes
    entropy = _entropy(counts)
    return SequenceUsage(sequences[order], counts[order], len(counts), possible, total, entropy)


def latent_transfer(model: Laq, frames: Tensor, shift: int = 1) -> Transfer:
    """Give each sample i the action of sample i + shift (around the batch).

    frames [B, 3, 2, H, W] on the model's device. The model is put into evaluation for it. Where
    a feature decoder teaches the codes, its own ratio says so long before the pictures do.
    """
    was_training = model.training
    model.eval()
    try:
        indices = model.encode(frames)  # [B, codes]
        own = model.imagine(frames, indices)
        others = indices.roll(-shift, dims=0)
        moved = model.imagine(frames, others)
        errors = [model.feature_error(frames, codes) for codes in (indices, others)]
    finally:
        model.train(was_training)
    last = frames[:, :, -1].float()
    if not frames.is_floating_point():
        last = last / 255
    own_mse, moved_mse = ((made - last).square().mean().item() for made in (own, moved))
    mine, theirs = errors
    ratio = None if mine is None or theirs is None else theirs.item() / max(mine.item(), 1e-12)
    return Transfer(moved_mse, own_mse, moved, ratio)


def _entropy(counts: NDArray[Any]) -> float:
    share = counts[counts > 0] / max(1, counts.sum())
    return float(-(share * np.log2(share)).sum()) + 0.0  # no negative zero
