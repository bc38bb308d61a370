"""The table and the wall behind it: one textured surface per dataset and camera."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["Surface", "make_surface"]

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Surface:
    """What does not move."""

    pixels: _Floats  #: [height, width, 3]
    horizon: float  #: where the table begins, as a fraction of the height
    grain: float  #: strength of the sensor's noise


@lru_cache(maxsize=8)
def make_surface(
    seed: int, dataset: str, number: int, camera: int, height: int, width: int, close: bool
) -> Surface:
    """The surface that all episodes of a dataset share, as one camera sees it."""
    rng = np.random.default_rng([seed, zlib.crc32(dataset.encode()), 3])
    table = _colour(0.6180339887 * number, rng.uniform(30, 85), rng.uniform(125, 190))
    wall = _colour(0.6180339887 * number + 0.4, rng.uniform(5, 40), rng.uniform(150, 225))
    material = _MATERIALS[number % len(_MATERIALS)]
    grain = float(rng.uniform(0.85, 1.35))
    rng = np.random.default_rng([seed, zlib.crc32(dataset.encode()), 4, camera])
    zoom = 2.2 if close else 1.0
    pixels = table + material(rng, height, width, zoom)[..., None] * (table / 160 + 0.2)
    pixels += _fractal(rng, height, width)[..., None]
    horizon = 0.0 if close else float(rng.uniform(0.26, 0.42))
    rows = round(horizon * height)
    if rows:
        shade = np.linspace(0.75, 1.05, rows, dtype=np.float32)[:, None, None]
        grid = _stretch(rng, rows, width, 3, 5) * 14 + _stretch(rng, rows, width, 2, 14) * 5
        pixels[:rows] = (wall + grid[..., None]) * shade + _fractal(rng, rows, width)[..., None] / 2
        pixels[rows : rows + max(1, height // 90)] *= 0.6
    return Surface(pixels.astype(np.float32), horizon, grain)


def _colour(hue: float, saturation: float, value: float) -> _Floats:
    """An RGB colour; hues near magenta are left to the object."""
    degrees = (hue % 1.0) * 250  # OpenCV halves the circle of 360: magenta begins at 280
    hsv = np.array([[[degrees / 2, saturation, value]]]).astype(np.uint8)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0, 0], np.float32)


def _stretch(
    rng: np.random.Generator, height: int, width: int, rows: float, columns: float
) -> _Floats:
    """Random values on a coarse grid, smoothly enlarged."""
    shape = (max(2, min(height, round(rows))), max(2, min(width, round(columns))))
    grid = rng.standard_normal(shape, np.float32)
    return np.asarray(cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)


def _fractal(rng: np.random.Generator, height: int, width: int) -> _Floats:
    """Stains and unevenness at every scale, finer ones fainter, as in photographs."""
    total = np.zeros((height, width), np.float32)
    for cells, strength in ((3, 12.0), (8, 7.0), (20, 4.5), (50, 3.2), (110, 2.6)):
        if 2 * cells <= height:  # finer than two pixels would be noise
            total += _stretch(rng, height, width, cells, cells * width / height) * strength
    return total


def _wood(rng: np.random.Generator, height: int, width: int, zoom: float) -> _Floats:
    grain = _stretch(rng, height, width, 90 / zoom, 4) * 7
    planks = _stretch(rng, height, width, 24 / zoom, 3) * 9
    pitch = max(6, round(height * zoom / 6))
    joints = np.where(np.arange(height) % pitch < max(1, height // 200), -34, 0)
    return grain + planks + joints[:, None].astype(np.float32)


def _tiles(rng: np.random.Generator, height: int, width: int, zoom: float) -> _Floats:
    size = max(6, round(height * zoom / 7))
    tones = rng.normal(0, 9, (height // size + 1, width // size + 1)).astype(np.float32)
    tiles = tones.repeat(size, 0).repeat(size, 1)[:height, :width]
    line = max(1, height // 160)
    grout = (np.arange(height) % size < line)[:, None] | (np.arange(width) % size < line)[None]
    return np.where(grout, np.float32(34), tiles).astype(np.float32)


def _cloth(rng: np.random.Generator, height: int, width: int, zoom: float) -> _Floats:
    period = max(3.0, height * zoom / 60)
    down = np.sin(np.arange(height) * 2 * np.pi / period)[:, None]
    across = np.sin(np.arange(width) * 2 * np.pi / period)[None]
    folds = _stretch(rng, height, width, 4, 6) * 12
    return np.asarray(folds + 7 * down * across, np.float32)


def _stone(rng: np.random.Generator, height: int, width: int, zoom: float) -> _Floats:
    specks = _stretch(rng, height, width, 70 / zoom, 70 / zoom * width / height)
    return np.where(np.abs(specks) > 1.3, specks * 14, specks * 3).astype(np.float32)


def _metal(rng: np.random.Generator, height: int, width: int, zoom: float) -> _Floats:
    brushed = _stretch(rng, height, width, 3, 150 / zoom) * 5
    return brushed + _stretch(rng, height, width, 3, 4) * 14


_MATERIALS = (_wood, _tiles, _cloth, _stone, _metal)
