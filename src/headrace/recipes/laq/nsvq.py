"""Vector quantisation by noise substitution, and the maintenance of its codebook.

In training the quantisation error is replaced by noise of the same length, so the gradient
reaches the encoder and, through that length, the codes: no straight-through estimator and no
commitment loss. Codes that are hardly used are moved next to used ones on a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from headrace.recipes.laq.config import LaqConfig

_LEAST_NORM = 1e-12


@dataclass(frozen=True, slots=True)
class Quantized:
    """The quantisation of a batch."""

    vectors: Tensor  #: [B, codes, code_dim] delta with noise in training, the codes otherwise
    indices: Tensor  #: int64 [B, codes]
    usage: Tensor  #: int64 [K] how often each code is chosen in this batch

    @property
    def perplexity(self) -> Tensor:
        """exp(entropy) of the usage: K when it is even, 1 when one code takes all."""
        share: Tensor = self.usage / self.usage.sum()
        entropy: Tensor = torch.special.entr(share).sum()
        return entropy.exp()


@dataclass(frozen=True, slots=True)
class Replacement:
    """What the replacement of little-used codes found and did."""

    used: int  #: codes that were used at all since the last time
    replaced: int  #: codes that were used too little and moved
    min_count: int  #: use of the least used code
    total: int  #: codes assigned since the last time


def replacement_due(step: int, schedule: tuple[tuple[int, int], ...]) -> bool:
    """Whether codes are replaced after training step number `step` (the first is 1).

    >>> [s for s in range(400) if replacement_due(s, ((50, 100), (150, 1000)))]
    [50, 150, 300]
    """
    return step > 0 and any(step < until and step % interval == 0 for interval, until in schedule)


class Nsvq(nn.Module):
    """A codebook. Counts how often each code is chosen, in training only.

    New codes are a few times longer than the first deltas. Codes of unit variance would be ten
    times longer: noise of that length drowns the action at first, and the codes take long to
    shrink to the deltas (seen in runs of 200 steps of small models).
    """

    def __init__(self, config: LaqConfig) -> None:
        super().__init__()
        self.config = config
        codebook = torch.randn(config.codebook_size, config.code_dim) * config.code_std
        self.codebook = nn.Parameter(codebook)
        # Deliberately not a buffer: DDP overwrites the buffers of all ranks with those of rank 0.
        self.counts = torch.zeros(config.codebook_size, dtype=torch.int64)

    def forward(self, delta: Tensor) -> Quantized:
        """delta [B, codes, code_dim] in float32."""
        indices = self.nearest(delta)
        chosen = self.codebook[indices]  # [B, codes, code_dim]
        # A comparison, because bincount makes the host wait for the GPU.
        codes = torch.arange(len(self.codebook), device=delta.device)
        usage = (indices.flatten()[:, None] == codes).sum(0)  # [K]
        if not self.training:
            return Quantized(chosen, indices, usage)
        self.counts += usage
        return Quantized(substitute_noise(delta, chosen), indices, usage)

    def nearest(self, delta: Tensor) -> Tensor:
        """The index of the nearest code by squared distance, [B, codes]."""
        with torch.no_grad():
            codes = self.codebook.float()
            distance = codes.square().sum(-1) - 2 * delta.float() @ codes.T  # + |delta|^2
            return distance.argmin(-1)

    @torch.no_grad()
    def replace(self, generator: torch.Generator | None = None) -> Replacement:
        """Move little-used codes next to used ones, and reset the counts.

        Under `torch.distributed` all ranks must call it: counts are summed over them, rank 0
        edits, and the others receive its codebook.
        """
        counts = self.counts.clone()
        ranks = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if ranks:
            dist.all_reduce(counts)
        self.counts.zero_()
        total = int(counts.sum())
        little = counts < self.config.replace_below * total / len(counts)
        replaced = int(little.sum())
        if replaced and (not ranks or dist.get_rank() == 0):
            used = self.codebook[~little]
            order = torch.randperm(len(used), generator=generator)
            source = used[order.to(used.device)].repeat(-(-replaced // len(used)), 1)[:replaced]
            noise = torch.randn(source.shape, generator=generator).to(source)
            self.codebook[little] = source + self.config.replace_noise * noise
        if replaced and ranks:
            dist.broadcast(self.codebook, src=0)
        return Replacement(int((counts > 0).sum()), replaced, int(counts.min()), total)

    def get_extra_state(self) -> dict[str, Any]:
        """The counts of this rank, so that a resumed run replaces the same codes.

        A checkpoint has those of rank 0; all ranks resume with them, which keeps the shares.
        """
        return {"counts": self.counts.cpu()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the counts of a checkpoint."""
        self.counts = state["counts"].to(self.counts.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Nsvq:
        """Counts move with the parameters."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.counts = fn(self.counts)
        return self


def substitute_noise(delta: Tensor, chosen: Tensor) -> Tensor:
    """delta + (|delta - chosen| / |r|) r with r of the standard normal distribution."""
    noise = torch.randn_like(delta)
    # The gradient of a norm at zero is NaN: keep a little distance.
    error = (delta - chosen).square().sum(-1, keepdim=True).clamp_min(_LEAST_NORM).sqrt()
    length = noise.square().sum(-1, keepdim=True).clamp_min(_LEAST_NORM).sqrt()
    return delta + error / length * noise
