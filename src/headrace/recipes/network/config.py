"""What the model is made of, and how it is trained: plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from headrace.errors import UsageError
from headrace.recipes.network.vocabulary import LENGTH, VOCABULARY

__all__ = ["Attention", "ModelConfig", "Precision", "Remat", "TrainingConfig"]

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

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup < 0:
            problem = f"steps {self.steps}, warmup {self.warmup}"
            raise UsageError(problem, remedy="Use positive numbers")
        if not 0 <= self.min_lr <= self.lr:
            problem = f"min_lr {self.min_lr} and lr {self.lr}"
            raise UsageError(problem, remedy="Keep 0 <= min_lr <= lr")
