"""Pictures of a small robot scene that a person and a test can read.

A frame shows a table with things on it, an arm that holds a magenta disc, a label such as
"bridge  ep 3  t 17", and a strip of cells with the same facts for a machine (`tag`). Surfaces,
light and grain are made so that an encoded frame has about as many bytes as a real one.

Everything is a pure function of (seed, dataset, episode, camera, step).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from headrace.testing.surface import make_surface
from headrace.testing.tag import Tag, draw_tag

__all__ = ["Scene", "View", "find_object", "seeded"]

_Pixels: TypeAlias = npt.NDArray[np.uint8]
_Colour: TypeAlias = tuple[int, int, int]

_MAGENTA = (232, 24, 170)  # the only thing of this hue in any scene
_RADIUS = 0.05  # of the disc, as a fraction of the shorter side
_LARGE = 1.8  # times that in a plain scene: motion that is plain to see in 64 pixels
_VARIANTS = 3  # of the grain, taken in turn: a still scene never repeats a frame's bytes at once
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ARMS: tuple[_Colour, ...] = ((222, 222, 216), (70, 74, 80), (214, 160, 60), (120, 150, 175))
_SHIFT = 4  # fractional bits of the coordinates handed to OpenCV


@dataclass(frozen=True, slots=True)
class View:
    """A camera of a dataset."""

    dataset: str  #: name on the label
    number: int  #: of the dataset, in the tag
    camera: int  #: number of the camera, in the tag
    name: str  #: of the camera
    height: int
    width: int
    channels: int = 3  #: 1 for grey, 3 for RGB
    plain: bool = False  #: the scene alone, evenly lit, with a large object

    @property
    def close(self) -> bool:
        """A camera on the hand sees the table only."""
        return any(word in self.name for word in ("wrist", "hand", "gripper"))


def seeded(seed: int, name: str, *more: int) -> np.random.Generator:
    """The random numbers of one thing, the same in every process."""
    return np.random.default_rng([seed, zlib.crc32(name.encode()), *more])


class Scene:
    """One camera's view of one episode."""

    def __init__(self, view: View, seed: int, episode: int, goal: tuple[float, float]) -> None:
        self._view, self._episode = view, episode
        rng = seeded(seed, view.dataset, episode, view.camera, 1)
        palette = seeded(seed, view.dataset, 2)
        self._arm = _ARMS[int(palette.integers(len(_ARMS)))]
        self._base = (float(rng.uniform(0.3, 0.7)), 0.0)
        size = view.height, view.width
        surface = make_surface(seed, view.dataset, view.number, view.camera, *size, view.close)
        even = np.asarray(np.clip(surface.pixels, 0, 255), np.uint8)
        image = even if view.plain else _lit(surface.pixels, rng)
        for _ in range(3 if view.close or view.plain else 5):
            _draw_thing(image, rng, surface.horizon)
        if view.plain:
            self._band, self._variants = 0, [image] * _VARIANTS
            return
        _draw_goal(image, goal)
        self._band, self._t_at, self._t_scale = _draw_label(image, view, episode)
        self._variants = [_grainy(image, surface.grain, rng) for _ in range(_VARIANTS)]

    def frame(self, step: int, place: npt.NDArray[np.float32]) -> _Pixels:
        """The picture of a step, with the object at `place` (x, y, height above the table)."""
        view = self._view
        image = self._variants[step % _VARIANTS].copy()
        _draw_arm(image, self._base, place, self._arm, self._band, _LARGE if view.plain else 1.0)
        if not view.plain:
            white = (245, 245, 240)
            cv2.putText(image, f"t {step}", self._t_at, _FONT, self._t_scale, white, 1, 16)
            draw_tag(image, Tag(view.number, self._episode, step, view.camera))
        if view.channels == 1:
            return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None], np.uint8)
        return image


def find_object(image: npt.NDArray[Any]) -> tuple[float, float]:
    """The place (x, y) of the disc in an RGB picture, as fractions of its width and height.

    Raises ValueError where there is no disc.
    """
    colour = image.astype(np.int16)
    excess = np.minimum(colour[..., 0], colour[..., 2]) - colour[..., 1] - 48
    weight = np.clip(excess, 0, 64).astype(np.float64)
    total = weight.sum()
    if total < 64:
        raise ValueError("no object in this picture")
    height, width = weight.shape
    x = weight.sum(axis=0) @ (np.arange(width) + 0.5) / total / width
    y = weight.sum(axis=1) @ (np.arange(height) + 0.5) / total / height
    return float(x), float(y)


def _lit(surface: npt.NDArray[np.float32], rng: np.random.Generator) -> _Pixels:
    """A surface under the light of an episode: brighter towards one side, a little tinted."""
    height, width = surface.shape[:2]
    angle = rng.uniform(0, 2 * np.pi)
    across = np.linspace(-0.5, 0.5, width, dtype=np.float32) * np.float32(np.cos(angle))
    down = np.linspace(-0.5, 0.5, height, dtype=np.float32) * np.float32(np.sin(angle))
    level = rng.uniform(0.86, 1.1) + 0.3 * (across[None, :] + down[:, None])
    tint = rng.uniform(0.96, 1.04, 3).astype(np.float32)
    if rng.random() < 0.5:
        surface = surface[:, ::-1]
    lit = np.clip(surface * level[..., None].astype(np.float32) * tint, 0, 255)
    return np.asarray(lit, np.uint8)


@lru_cache(maxsize=4)
def _noise(height: int, width: int) -> npt.NDArray[np.float32]:
    """Grain of unit strength, a little larger than an image so that it can be shifted."""
    rng = np.random.default_rng(height * 10007 + width)
    return rng.standard_normal((height + 16, width + 16), np.float32)


def _grainy(image: _Pixels, strength: float, rng: np.random.Generator) -> _Pixels:
    height, width = image.shape[:2]
    down, right = (int(shift) for shift in rng.integers(0, 17, 2))
    noise = _noise(height, width)[down : down + height, right : right + width] * strength
    grey = np.rint(noise).astype(np.int16)
    return np.asarray(cv2.add(image, cv2.merge([grey, grey, grey]), dtype=cv2.CV_8U), np.uint8)


def _draw_label(image: _Pixels, view: View, episode: int) -> tuple[int, tuple[int, int], float]:
    """Draw all but the step; the height of the band, and where and how large the step goes."""
    height, width = image.shape[:2]
    white = (245, 245, 240)
    lines = [f"{view.dataset}   ep {episode}"] if width >= 200 else [view.dataset, f"ep {episode}"]
    scale = float(np.clip(height / 620, 0.3, 0.8))
    room = width - (4 if len(lines) == 2 else 4 + round(160 * scale))
    wide = max(cv2.getTextSize(line, _FONT, scale, 1)[0][0] for line in lines)
    scale *= min(1.0, room / wide)
    pitch = round(34 * scale)
    band = image[: pitch * len(lines) + round(4 * scale)]
    band[:] = band // 4
    for i, line in enumerate(lines, 1):
        cv2.putText(image, line, (3, i * pitch - round(8 * scale)), _FONT, scale, white, 1, 16)
    end = 3 + cv2.getTextSize(lines[-1], _FONT, scale, 1)[0][0]
    camera = cv2.getTextSize(view.name, _FONT, scale * 0.8, 1)[0][0]
    taken = wide * min(1.0, room / wide) if len(lines) == 2 else end + 180 * scale
    if width - camera - 4 > taken + 10 * scale:
        at = (width - camera - 4, pitch - round(8 * scale))
        cv2.putText(image, view.name, at, _FONT, scale * 0.8, (190, 190, 185), 1, 16)
    return len(band), (end + round(20 * scale), pitch * len(lines) - round(8 * scale)), scale


def _draw_goal(image: _Pixels, goal: tuple[float, float]) -> None:
    """A ring where the episode ends."""
    height, width = image.shape[:2]
    centre = round(goal[0] * width), round(goal[1] * height)
    radius = round(0.085 * min(height, width))
    cv2.circle(image, centre, radius, (70, 130, 80), max(1, radius // 5), 16)


def _draw_thing(image: _Pixels, rng: np.random.Generator, horizon: float) -> None:
    """A box, a cup or a bowl in a muted colour, with a shadow."""
    height, width = image.shape[:2]
    size = float(rng.uniform(0.05, 0.12)) * min(height, width)
    x = float(rng.uniform(0.05, 0.95)) * width
    y = float(rng.uniform(max(horizon + 0.08, 0.3), 0.88)) * height
    hue = float(rng.choice([rng.uniform(0, 95), rng.uniform(95, 250)])) / 2  # no magenta
    hsv = np.array([[[hue, rng.uniform(60, 150), rng.uniform(90, 220)]]]).astype(np.uint8)
    tone = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0, 0].astype(int)
    colour, side = tuple(map(int, tone)), tuple(map(int, tone * 2 // 3))
    at, s = (round(x), round(y)), max(2, round(size))
    shadow = image[max(0, at[1] - s // 6) : at[1] + s // 2, max(0, at[0] - s) : at[0] + s + s // 3]
    shadow[:] = shadow // 4 * 3
    kind = int(rng.integers(3))
    if kind == 0:
        top = np.array([[-s, -s], [s // 3, -s * 5 // 4], [s, -s], [-s // 3, -s * 3 // 4]]) + at
        cv2.rectangle(image, (at[0] - s, at[1] - s), (at[0] + s, at[1] + s // 3), side, -1)
        cv2.fillPoly(image, [top.astype(np.int32)], colour, 16)
    elif kind == 1:
        cv2.rectangle(image, (at[0] - s // 2, at[1] - s), (at[0] + s // 2, at[1]), side, -1)
        cv2.ellipse(image, at, (s // 2, s // 5), 0, 0, 360, side, -1, 16)
        cv2.ellipse(image, (at[0], at[1] - s), (s // 2, s // 5), 0, 0, 360, colour, -1, 16)
    else:
        cv2.ellipse(image, at, (s, s * 2 // 3), 0, 0, 360, colour, -1, 16)
        cv2.ellipse(image, at, (s * 3 // 4, s // 2), 0, 0, 360, side, -1, 16)


def _draw_arm(
    image: _Pixels,
    base: tuple[float, float],
    place: npt.NDArray[np.float32],
    colour: _Colour,
    band: int,
    size: float,
) -> None:
    """An arm of two links that reaches from below the label to a gripper around the disc."""
    height, width = image.shape[:2]
    short = min(height, width)
    x, y, lift = float(place[0]) * width, float(place[1]) * height, float(place[2])
    radius = max(2.5, size * _RADIUS * short)

    def at(px: float, py: float) -> tuple[int, int]:
        """Pixel centres are at half integers; OpenCV's at integers."""
        return round((px - 0.5) * (1 << _SHIFT)), round((py - band - 0.5) * (1 << _SHIFT))

    image = image[band:]
    dark: _Colour = (colour[0] // 2, colour[1] // 2, colour[2] // 2)
    thick = max(1, round(short * 0.03 * size))
    palm = (x, y - 1.9 * radius)
    root = (base[0] * width, float(band))
    elbow = ((root[0] + palm[0]) / 2 + 0.12 * width, (root[1] + palm[1]) / 2 - 0.04 * height)
    fall = (radius * (0.9 + lift), radius * (0.35 + lift / 2))
    ground = at(x + radius * lift * 2, y + radius * (1 + 2 * lift))
    axes = (round(fall[0] * (1 << _SHIFT)), round(fall[1] * (1 << _SHIFT)))
    cv2.ellipse(image, ground, axes, 0, 0, 360, (52, 48, 46), -1, 16, _SHIFT)
    for start, end in ((root, elbow), (elbow, palm)):
        cv2.line(image, at(*start), at(*end), dark, thick + max(2, thick // 2), 16, _SHIFT)
        cv2.line(image, at(*start), at(*end), colour, thick, 16, _SHIFT)
    bar = max(1, round(radius * 0.35))
    left, right = x - 1.35 * radius, x + 1.35 * radius
    cv2.line(image, at(left, palm[1]), at(right, palm[1]), (60, 62, 66), bar + 1, 16, _SHIFT)
    for finger in (left, right):
        tip = y + 0.3 * radius
        cv2.line(image, at(finger, palm[1]), at(finger, tip), (60, 62, 66), bar, 16, _SHIFT)
    cv2.circle(image, at(x, y), round(radius * (1 << _SHIFT)), _MAGENTA, -1, 16, _SHIFT)
