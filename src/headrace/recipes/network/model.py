"""A decoder-only transformer in plain JAX (rotary positions, RMS norms, gated feed-forward), its
optimizer (AdamW of optax) and its step.

Parameters are a dict of float32 arrays; those of the layers are stacked, and one `scan` goes
through them, so that compiling takes as long as for one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import UsageError
from headrace.recipes.network.config import ModelConfig, TrainingConfig

try:
    import jax
    import optax
    from jax import numpy as jnp
except ModuleNotFoundError as error:
    if error.name not in ("jax", "optax"):
        raise
    raise UsageError(
        f"the model of the network recipe needs {error.name}, which is not installed",
        remedy="pip install 'headrace[jax]', and JAX's own wheel for your accelerator",
    ) from error

Batch: TypeAlias = Mapping[str, Any]  #: the fields of the tokenizer
Parameters: TypeAlias = dict[str, Any]

_ROTARY_BASE = 10_000.0


def init(config: ModelConfig, seed: Any = 0) -> Parameters:
    """New parameters: normal, and smaller where depth adds up."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    dim, depth, width, inner = config.dim, config.depth, config.width, config.inner

    def normal(*shape: int, scale: float = 0.02) -> Any:
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    deep = 0.02 / (2 * depth) ** 0.5
    return {
        "embed": normal(config.vocabulary, dim),
        "layers": {
            "norm1": jnp.ones((depth, dim)),
            "qkv": normal(depth, dim, 3 * width),
            "out": normal(depth, width, dim, scale=deep),
            "norm2": jnp.ones((depth, dim)),
            "gate_up": normal(depth, dim, 2 * inner),
            "down": normal(depth, inner, dim, scale=deep),
        },
        "norm": jnp.ones(dim),
        "head": normal(dim, config.vocabulary),
    }


def count_parameters(parameters: Parameters) -> int:
    """Numbers that are trained."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(parameters))


def logits(parameters: Parameters, batch: Batch, config: ModelConfig) -> Any:
    """What follows each token, [B, T, vocabulary], in float32."""
    kind = _precision(config)
    x = parameters["embed"].astype(kind)[batch["inputs"]]
    turn = _rotation(batch["inputs_position"], config.head_dim)
    mask = _mask(batch["inputs_segmentation"]) if config.packed else None

    def layer(x: Any, weights: Parameters) -> tuple[Any, None]:
        weights = {name: weight.astype(kind) for name, weight in weights.items()}
        x = x + _attend(_norm(x, weights["norm1"]), weights, turn, mask, config)
        return x + _feed_forward(_norm(x, weights["norm2"]), weights), None

    x, _ = jax.lax.scan(_remat(layer, config), x, parameters["layers"])
    x = _norm(x, parameters["norm"].astype(kind))
    return jnp.matmul(x, parameters["head"].astype(kind), preferred_element_type=jnp.float32)


def loss(parameters: Parameters, batch: Batch, config: ModelConfig) -> Any:
    """Mean cross-entropy, in nats, of the next token wherever that is of the same segment."""
    scores = jax.nn.log_softmax(logits(parameters, batch, config))
    following = jnp.roll(batch["targets"], -1, axis=1)
    segment = jnp.roll(batch["targets_segmentation"], -1, axis=1).at[:, -1].set(0)
    counts = (segment == batch["inputs_segmentation"]) & (segment > 0)
    chosen = jnp.take_along_axis(scores, following[..., None], axis=-1)[..., 0]
    return -(chosen * counts).sum() / jnp.maximum(counts.sum(), 1)


def _attend(x: Any, weights: Parameters, turn: Any, mask: Any, config: ModelConfig) -> Any:
    batch, length, _ = x.shape
    q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
    shape = (batch, length, config.heads, config.head_dim)
    # Padding comes last, so a causal mask keeps it from being seen.
    seen = jax.nn.dot_product_attention(
        _turned(q.reshape(shape), turn),
        _turned(k.reshape(shape), turn),
        v.reshape(shape),
        mask=mask,
        is_causal=True,
        implementation=_implementation(config),
    )
    return seen.reshape(batch, length, config.width) @ weights["out"]


def _feed_forward(x: Any, weights: Parameters) -> Any:
    gate, up = jnp.split(x @ weights["gate_up"], 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ weights["down"]


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    root = jax.lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + 1e-6)
    return (wide * root).astype(x.dtype) * scale


def _rotation(positions: Any, size: int) -> tuple[Any, Any]:
    """Cosines and sines of the angles by which pairs of numbers turn at each position."""
    frequency = _ROTARY_BASE ** (-jnp.arange(0, size, 2) / size)
    angle = positions[..., None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def _turned(x: Any, turn: tuple[Any, Any]) -> Any:
    cosine, sine = turn
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _mask(segments: Any) -> Any:
    """Which token may attend to which in packed sequences: [B, 1, T, T]."""
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def _remat(layer: Any, config: ModelConfig) -> Any:
    if config.remat == "none":
        return layer
    keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(layer, policy=keep if config.remat == "products" else None)


def _precision(config: ModelConfig) -> Any:
    if config.precision != "auto":
        return jnp.dtype(config.precision)
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def _implementation(config: ModelConfig) -> Any:
    if config.attention != "auto":
        return config.attention
    gpu = jax.default_backend() == "gpu" and _precision(config) == jnp.bfloat16
    return "cudnn" if gpu and not config.packed else "xla"


# -- the step --------------------------------------------------------------------------------------

#: Fields of a batch that a step uses; the others need not travel to the device.
NEEDED = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position")


class TrainState(NamedTuple):
    """Everything that a step changes."""

    parameters: Parameters
    optimizer: Any  #: optax's own state
    step: Any  #: steps that were taken


def learning_rate(step: Any, config: TrainingConfig) -> Any:
    """The learning rate of step number `step`, the first being 0: a warm-up, then a cosine."""
    warm = config.lr * (step + 1) / max(1, config.warmup)
    done = jnp.clip((step - config.warmup) / max(1, config.steps - config.warmup), 0, 1)
    cosine = config.min_lr + (config.lr - config.min_lr) * (1 + jnp.cos(jnp.pi * done)) / 2
    return jnp.where(step < config.warmup, warm, cosine)


def _optimizer(config: TrainingConfig) -> Any:
    """AdamW with the gradient cut to its norm, and decay on matrices alone."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            lambda step: learning_rate(step, config),
            *config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=_decayed,
        ),
    )


def _decayed(parameters: Parameters) -> Any:
    def is_matrix(path: tuple[Any, ...], _: Any) -> bool:
        return "norm" not in str(getattr(path[-1], "key", ""))

    return jax.tree_util.tree_map_with_path(is_matrix, parameters)


def new_state(config: ModelConfig, training: TrainingConfig) -> TrainState:
    """The state before the first step."""
    state: TrainState = _new_state(config, training)
    return state


def _make_state(config: ModelConfig, training: TrainingConfig) -> TrainState:
    parameters = init(config, training.seed)
    return TrainState(parameters, _optimizer(training).init(parameters), jnp.zeros((), jnp.int32))


_new_state = jax.jit(_make_state, static_argnums=(0, 1))


@lru_cache(maxsize=8)
def make_step(
    config: ModelConfig, training: TrainingConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, Any]]:
    """A compiled step: the state before and a batch to the state after and the loss.

    The state that is given is used up, so that there is memory for one alone.
    """
    optimizer = _optimizer(training)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        value, gradient = jax.value_and_grad(loss)(state.parameters, batch, config)
        changes, inner = optimizer.update(gradient, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, changes)
        return TrainState(parameters, inner, state.step + 1), value

    compiled = jax.jit(step, donate_argnums=0)
    return lambda state, batch: compiled(state, {name: batch[name] for name in NEEDED})
