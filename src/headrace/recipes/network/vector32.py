"""Arrays of 32-bit words, whose sums and products wrap."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Words32", "word"]

Words32: TypeAlias = npt.NDArray[np.uint32]


def word(value: int) -> np.uint32:
    """A constant that does not widen what it is combined with."""
    return np.uint32(value)
