"""What a training step needs besides the model, with or without Lightning.

AdamW with weight decay on matrices only; a learning rate that warms up and falls as a cosine; a
watch for losses that are not finite; and the floating-point operations of a step.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import HeadraceError
from headrace.recipes.laq.blocks import decoder_sizes
from headrace.recipes.laq.config import FRAMES, LaqConfig
from headrace.recipes.training.options import TrainingOptions

# -- optimizer -------------------------------------------------------------------------------------


def learning_rate(step: int, config: TrainingOptions) -> float:
    """The learning rate of step number `step`, the first being 0.

    >>> config = TrainingOptions(steps=2000, warmup=1000)
    >>> [f"{learning_rate(s, config):.2e}" for s in (0, 499, 999, 1500, 2000, 9999)]
    ['1.00e-07', '5.00e-05', '1.00e-04', '5.05e-05', '1.00e-06', '1.00e-06']
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2


def make_optimizer(model: nn.Module, config: TrainingOptions) -> torch.optim.AdamW:
    """AdamW over what is trainable, in one fused kernel where all of it is on a GPU."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_cuda for p in trained)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)


def make_schedule(
    optimizer: torch.optim.Optimizer, config: TrainingOptions
) -> torch.optim.lr_scheduler.LambdaLR:
    """The schedule of `learning_rate`; call its `step` after every step of the optimizer."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, config) / config.lr
    )


# -- losses that are not finite --------------------------------------------------------------------

_KEPT = ("draws", "dataset", "episode_id", "frame_idx", "offset", "names")
_SHOWN = 3  # samples named in the message; the file has all


class NonFiniteLossError(HeadraceError, ArithmeticError):
    """The loss of a training step is infinite or not a number."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.problem, self.remedy)


def _again(problem: str, remedy: str | None) -> NonFiniteLossError:
    return NonFiniteLossError(problem, remedy=remedy)


def provenance(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where each sample of a batch comes from: draw, dataset, episode, frame, offset.

    The episode is given as in the batch (`episode_id`) and as shard and record. What the metadata
    mode of the loader leaves out is left out here too.
    """
    columns: dict[str, list[int]] = {
        name: batch[name].tolist() for name in _KEPT if name != "names" and name in batch
    }
    count = len(next(iter(columns.values()))) if columns else 0
    samples = []
    for i in range(count):
        sample: dict[str, Any] = {}
        if "draws" in columns:
            sample["draw"] = columns["draws"][i]
        if "dataset" in columns:
            sample["dataset"] = batch["names"][columns["dataset"][i]]
        if "episode_id" in columns:
            episode = columns["episode_id"][i]
            sample |= {"episode_id": episode, "shard": episode >> 32}
            sample["record"] = episode & 0xFFFFFFFF
        if "frame_idx" in columns:
            sample["frame"] = columns["frame_idx"][i]
        if "offset" in columns:
            sample["offset"] = columns["offset"][i]
        samples.append(sample)
    return samples


@dataclass(slots=True)
class _Watched:
    step: int
    batch: dict[str, Any]
    finite: Tensor  #: bool on the host, valid once `ready` has happened
    ready: torch.cuda.Event | None


class LossWatch:
    """Raises when a loss is not finite, with the provenance of its batch in a JSON file.

    On a GPU the flag is copied to the host in the background and read a few steps later: reading
    it at once would make the host wait for every step. Call `settle` before a checkpoint is written
    and at the end.
    """

    def __init__(self, folder: str | Path | None = None, behind: int = 8) -> None:
        self._folder = None if folder is None else Path(folder)
        self._behind = behind
        self._pending: deque[_Watched] = deque()

    def watch(self, step: int, batch: Mapping[str, Any], loss: Tensor) -> None:
        """Check the loss of a step, and those of earlier steps that have arrived."""
        kept = {name: batch[name] for name in _KEPT if name in batch}
        finite = loss.detach().isfinite().all()
        ready = None
        if finite.is_cuda:
            # The memory of the batch may be reused before the flag arrives.
            kept = {n: v.clone() if isinstance(v, Tensor) else v for n, v in kept.items()}
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            host.copy_(finite, non_blocking=True)
            finite, ready = host, torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self._pending.append(_Watched(step, kept, finite, ready))
        while self._pending and (
            (first := self._pending[0]).ready is None
            or first.ready.query()  # type: ignore[no-untyped-call]
            or len(self._pending) > self._behind
        ):
            self._check(self._pending.popleft())

    def settle(self) -> None:
        """Wait for the flags of all steps watched so far."""
        while self._pending:
            self._check(self._pending.popleft())

    def _check(self, watched: _Watched) -> None:
        if watched.ready is not None:
            watched.ready.synchronize()
        if bool(watched.finite):
            return
        self._pending.clear()
        samples = provenance(watched.batch)
        first = "; ".join(
            ", ".join(f"{key} {value}" for key, value in sample.items())
            for sample in samples[:_SHOWN]
        )
        more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
        problem = f"the loss of step {watched.step} is not finite; its batch: {first}{more}"
        raise NonFiniteLossError(problem, remedy=self._written(watched.step, samples))

    def _written(self, step: int, samples: list[dict[str, Any]]) -> str:
        remedy = "Look at these samples, lower the learning rate, or resume before this step"
        if self._folder is None:
            return remedy
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"nonfinite_step_{step}.json"
        path.write_text(json.dumps({"step": step, "samples": samples}, indent=1) + "\n")
        return f"All samples are in {path}. {remedy}"


# -- operations of a step --------------------------------------------------------------------------

#: Taps of the position convolution that meet a frame, for each of `FRAMES` frames and for one.
_PLANE = 9


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Operations of one training step of a batch."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        """Of the whole step. The few operations of the optimizer do not count."""
        return self.forward + self.backward

    def utilisation(self, step_s: float, peak: float) -> float:
        """MFU: the share of `peak` operations a second, at `step_s` seconds a step."""
        return self.total / step_s / peak


def step_flops(config: LaqConfig, batch_size: int, teachers: bool = True) -> StepFlops:
    """Operations of a training step, counted from the shapes: the M of MFU.

    A multiplication and an addition are two. Only matrix products, attention and convolutions
    count; a backward pass costs one product for the gradient of the weight and one for that of the
    input. The forward pass of a DINO teacher counts, that of RAFT does not.
    """
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
