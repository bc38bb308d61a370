"""What the model is made of, how it is trained, and what a step costs; needs no framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from headrace.errors import UsageError
from headrace.recipes.network.vocabulary import LENGTH, VOCABULARY

Attention: TypeAlias = Literal["auto", "xla", "cudnn"]
Precision: TypeAlias = Literal["auto", "bfloat16", "float32"]
Remat: TypeAlias = Literal["none", "products", "all"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. `base()` has 99 M parameters, `tiny()` is for tests."""

    dim: int = 768  #: width of a token
    depth: int = 14  #: layers
    heads: int = 12
    head_dim: int = 64
    inner: int = 2048  #: width of the gated feed-forward
    length: int = LENGTH  #: tokens of a sequence
    vocabulary: int = VOCABULARY
    attention: Attention = "auto"  #: cuDNN's kernel on an NVIDIA GPU in bfloat16, else XLA's
    precision: Precision = "auto"  #: of the computation: bfloat16 on a GPU, else float32
    remat: Remat = "products"  #: what the backward pass computes again: not the matrix products
    packed: bool = False  #: sequences hold several segments, which must not see each other

    def __post_init__(self) -> None:
        for name in ("dim", "depth", "heads", "head_dim", "inner", "length", "vocabulary"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="It must be positive")
        if self.head_dim % 2:
            raise UsageError(f"head_dim is {self.head_dim}", remedy="Rotary positions need pairs")
        for name, known in (
            ("attention", ("auto", "xla", "cudnn")),
            ("precision", ("auto", "bfloat16", "float32")),
            ("remat", ("none", "products", "all")),
        ):
            if getattr(self, name) not in known:
                problem = f"{name} is {getattr(self, name)!r}"
                raise UsageError(problem, remedy=f"Give one of {', '.join(known)}")
        if self.packed and self.attention == "cudnn":
            raise UsageError(
                "packed sequences need a mask, which attention 'cudnn' does not take here",
                remedy="Use attention='xla'",
            )

    @property
    def width(self) -> int:
        """Of all heads together."""
        return self.heads * self.head_dim

    @classmethod
    def base(cls, **changes: Any) -> ModelConfig:
        """99 M parameters: a real step for one large GPU at batch 256."""
        return replace(cls(), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> ModelConfig:
        """A few hundred thousand parameters: a laptop's CPU, and tests."""
        tiny = cls(dim=64, depth=2, heads=2, head_dim=32, inner=128, remat="none")
        return replace(tiny, **changes)


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How the model is trained: AdamW, a warm-up, then a cosine."""

    steps: int = 10_000  #: of the whole run: where the cosine ends
    lr: float = 3e-4  #: highest learning rate
    min_lr: float = 3e-5  #: at the end
    warmup: int = 500  #: steps
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1  #: on matrices
    clip: float = 1.0  #: norm of the gradient
    seed: int = 0
    checkpoint_every: int = 1000  #: steps between two writings of checkpoints/last.ckpt
    resume: str | None = None  #: auto: the newest run of the experiment; a run; a checkpoint
    examine: int = 0  #: steps to measure after training, for what limits them; 0: none
    peak_flops: float | None = None  #: of the device, a second, for MFU: H200 989e12, A100 312e12

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("checkpoint_every", 1), ("examine", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy=f"Give {least} or more")
        if not 0 <= self.min_lr <= self.lr:
            problem = f"min_lr {self.min_lr} and lr {self.lr}"
            raise UsageError(problem, remedy="Keep 0 <= min_lr <= lr")


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Floating-point operations of one training step of a batch, counted from the shapes.

    A multiplication and an addition are two; only matrix products count, and a backward pass is two
    forward ones. Attention counts for what a causal model needs, which is half of all pairs;
    what is
    computed again to save memory does not count.
    """

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
