"""AdamW by hand: decay on matrices only, a learning rate that warms up and falls as a cosine."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.recipes.network.config import ModelConfig, TrainingConfig
from headrace.recipes.network.framework import jax, jnp
from headrace.recipes.network.model import Parameters, init

__all__ = ["TrainState", "learning_rate", "new_state", "update"]


class TrainState(NamedTuple):
    """Everything that a step changes."""

    parameters: Parameters
    mean: Parameters  #: of the gradients
    square: Parameters  #: mean of their squares
    step: Any  #: steps that were taken


def new_state(config: ModelConfig, seed: int = 0) -> TrainState:
    """Before the first step."""
    state: TrainState = _new_state(config, seed)
    return state


def _make_state(config: ModelConfig, seed: int) -> TrainState:
    parameters = init(config, seed)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return TrainState(parameters, zeros, zeros, jnp.zeros((), jnp.int32))


_new_state = jax.jit(_make_state, static_argnums=0)


def learning_rate(step: Any, config: TrainingConfig) -> Any:
    """The learning rate of step number `step`, the first being 0."""
    warm = config.lr * (step + 1) / max(1, config.warmup)
    done = jnp.clip((step - config.warmup) / max(1, config.steps - config.warmup), 0, 1)
    cosine = config.min_lr + (config.lr - config.min_lr) * (1 + jnp.cos(jnp.pi * done)) / 2
    return jnp.where(step < config.warmup, warm, cosine)


def update(state: TrainState, gradient: Parameters, config: TrainingConfig) -> TrainState:
    """One step along the gradient, cut to its norm."""
    squares = sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient))
    cut = jnp.minimum(1.0, config.clip / (jnp.sqrt(squares) + 1e-12))
    first, second = config.betas
    step = state.step + 1
    rate = learning_rate(state.step, config)
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * cut * g, state.mean, gradient)
    square = jax.tree.map(
        lambda s, g: second * s + (1 - second) * (cut * g) ** 2, state.square, gradient
    )

    def moved(name: tuple[Any, ...], p: Any, m: Any, s: Any) -> Any:
        m, s = m / (1 - first**step), s / (1 - second**step)
        norm = "norm" in str(getattr(name[-1], "key", ""))
        decay = 0.0 if norm else config.weight_decay
        return p - rate * (m / (jnp.sqrt(s) + config.epsilon) + decay * p)

    parameters = jax.tree_util.tree_map_with_path(moved, state.parameters, mean, square)
    return TrainState(parameters, mean, square, step)
