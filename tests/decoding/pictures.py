"""A picture to encode, and the pixels that TensorFlow and headrace decode from the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.decoding.frame import decode_image
from headrace.errors import ImageError


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Waves with noise: every frequency in it, and it compresses like a photograph."""
    rng = np.random.default_rng([seed, height, width])
    y, x = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / 7 + c) + 60 * np.cos(y / (5 + c)) for c in range(channels)]
    noisy = np.stack(waves, -1) + rng.normal(0, 15, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def tensorflow(data: bytes, channels: int | None, dtype: str = "uint8") -> npt.NDArray[Any] | None:
    """TensorFlow's pixels; None where it refuses."""
    import tensorflow as tf

    try:
        pixels: npt.NDArray[Any] = tf.image.decode_image(data, channels, dtype).numpy()
    except tf.errors.InvalidArgumentError:
        return None
    return pixels


def ours(data: bytes, channels: int | None, dtype: Any = "uint8") -> npt.NDArray[Any] | None:
    """The same by `decode_image`."""
    try:
        return decode_image(data, channels=channels, dtype=dtype)
    except ImageError:
        return None
