"""A machine-readable strip at the bottom of a picture: which dataset, episode, step and camera.

Two rows of 32 light or dark cells across the full width: 52 bits of content and a 12-bit
checksum. Its place is a fraction of the height, so it survives JPEG and also resizing, as long
as a cell stays about two pixels wide.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["Tag", "draw_tag", "read_tag", "strip_height"]

_ROWS, _COLUMNS = 2, 32
_CELL = 0.045  # height of a cell as a fraction of the image: three pixels of 64
_DATASET, _EPISODE, _STEP, _CAMERA, _CHECK = 8, 24, 16, 4, 12  # bits


@dataclass(frozen=True, slots=True)
class Tag:
    """What a picture says about itself."""

    dataset: int
    episode: int
    step: int
    camera: int


def strip_height(height: int) -> int:
    """The rows of pixels that the strip takes at the bottom of an image."""
    return _ROWS * max(1, round(_CELL * height))


def draw_tag(image: npt.NDArray[Any], tag: Tag, dark: float = 28, light: float = 228) -> None:
    """Draw the strip into an image [h, w] or [h, w, c] of any type, with two of its values."""
    height, width = image.shape[:2]
    rows = strip_height(height)
    bits = f"{_encode(tag):0{_ROWS * _COLUMNS}b}"
    values = [light if bit == "1" else dark for bit in bits]
    cells = np.array(values, image.dtype).reshape(_ROWS, _COLUMNS)
    strip = cv2.resize(cells, (width, rows), interpolation=cv2.INTER_NEAREST)
    image[height - rows :] = strip[..., None] if image.ndim == 3 else strip


def read_tag(image: npt.NDArray[Any]) -> Tag:
    """Read the strip from an image [h, w] or [h, w, c] of any type.

    Raises ValueError where there is no strip or its checksum is wrong.
    """
    height = image.shape[0]
    strip = image[height - strip_height(height) :].astype(np.float32)
    grey = strip.mean(axis=2) if strip.ndim == 3 else strip
    cells = cv2.resize(grey, (_COLUMNS, _ROWS), interpolation=cv2.INTER_AREA)
    bits = cells > (float(cells.min()) + float(cells.max())) / 2
    word = int("".join("1" if bit else "0" for bit in bits.flat), 2)
    content = word >> _CHECK
    camera = content & (1 << _CAMERA) - 1
    step = content >> _CAMERA & (1 << _STEP) - 1
    episode = content >> _CAMERA + _STEP & (1 << _EPISODE) - 1
    tag = Tag(content >> _CAMERA + _STEP + _EPISODE, episode, step, camera)
    if _encode(tag) != word:
        raise ValueError("no tag in this picture, or it is damaged")
    return tag


def _encode(tag: Tag) -> int:
    fields = (tag.dataset, _DATASET), (tag.episode, _EPISODE), (tag.step, _STEP)
    content = 0
    for value, bits in (*fields, (tag.camera, _CAMERA)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{value} of {tag} does not fit into {bits} bits")
        content = content << bits | value
    check = zlib.crc32(content.to_bytes(8, "little")) & (1 << _CHECK) - 1
    return content << _CHECK | check
