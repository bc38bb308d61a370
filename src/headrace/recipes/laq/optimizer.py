"""AdamW with decay on matrices only, and a learning rate that warms up and falls as a cosine."""

from __future__ import annotations

import math

import torch
from torch import nn

from headrace.recipes.laq.config import TrainingConfig

__all__ = ["learning_rate", "make_optimizer", "make_schedule"]


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The learning rate of step number `step`, the first being 0.

    >>> config = TrainingConfig(steps=2000, warmup=1000)
    >>> [f"{learning_rate(s, config):.2e}" for s in (0, 499, 999, 1500, 2000, 9999)]
    ['1.00e-07', '5.00e-05', '1.00e-04', '5.05e-05', '1.00e-06', '1.00e-06']
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over what is trainable, in one fused kernel where all of it is on a GPU."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_cuda for p in trained)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)


def make_schedule(
    optimizer: torch.optim.Optimizer, config: TrainingConfig
) -> torch.optim.lr_scheduler.LambdaLR:
    """The schedule of `learning_rate`; call its `step` after every step of the optimizer."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, config) / config.lr
    )
