"""A sheet to draw on: text, bars and dots in RGB, with OpenCV."""

from __future__ import annotations

import colorsys
import unicodedata
from pathlib import Path
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.errors import UsageError

__all__ = [
    "GREY",
    "INK",
    "LINE",
    "PAPER",
    "Colour",
    "Image",
    "blank",
    "line",
    "palette",
    "save_png",
    "write",
]

Image: TypeAlias = NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]

PAPER: Colour = (250, 250, 248)
INK: Colour = (30, 30, 30)
GREY: Colour = (150, 150, 150)
LINE = 16  #: height of a line of text

_FONT, _SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.4


def blank(height: int, width: int) -> Image:
    """An empty sheet."""
    return np.full((height, width, 3), PAPER, np.uint8)


def write(image: Image, left: int, baseline: int, text: str, colour: Colour = INK) -> None:
    """One line of text, in the letters that the font has."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "replace").decode()
    cv2.putText(image, plain, (left, baseline), _FONT, _SCALE, colour, 1, cv2.LINE_AA)


def line(image: Image, start: tuple[int, int], end: tuple[int, int], colour: Colour = INK) -> None:
    """A thin line between two points (x, y)."""
    cv2.line(image, start, end, colour, 1, cv2.LINE_AA)


def palette(count: int) -> list[Colour]:
    """Colours that are told apart: around the colour circle, light and dark in turn."""
    colours = []
    for i in range(count):
        value = 0.85 if i % 2 else 0.62
        red, green, blue = colorsys.hsv_to_rgb(i / max(1, count), 0.75, value)
        colours.append((round(red * 255), round(green * 255), round(blue * 255)))
    return colours


def save_png(image: Image, path: str | Path) -> Path:
    """Write a picture, and the folders above it. Quickly rather than as small as can be."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fast = [cv2.IMWRITE_PNG_COMPRESSION, 1]
    if not cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR), fast):
        raise UsageError(f"the picture {str(path)!r} cannot be written", remedy="End it in .png")
    return path
