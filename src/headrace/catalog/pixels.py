"""A camera's encoded frame to pixels, as its schema declares them."""

from __future__ import annotations

from typing import Any, cast

from numpy.typing import NDArray

from headrace.decoding.frame import PixelType, decode_image
from headrace.formats.features import Field

__all__ = ["decode_frame"]


def decode_frame(camera: Field, data: bytes) -> NDArray[Any]:
    """[height, width, channels] of the camera's dtype, equal to what TFDS gives."""
    channels = camera.shape[-1] if camera.shape else None
    return decode_image(data, channels=channels, dtype=cast(PixelType, camera.dtype))
