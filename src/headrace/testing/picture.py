"""Pictures of a small robot scene that a person and a test can read.

A frame shows a table with things on it, an arm that holds a magenta disc, a label such as
"bridge  ep 3  t 17", and a strip of cells with the same facts for a machine (`Tag`). Surfaces,
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

_Pixels: TypeAlias = npt.NDArray[np.uint8]
_Floats: TypeAlias = npt.NDArray[np.float32]
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
        surface = _make_surface(seed, view.dataset, view.number, view.camera, *size, view.close)
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
def _unit_noise(height: int, width: int) -> npt.NDArray[np.float32]:
    """Grain of unit strength, a little larger than an image so that it can be shifted."""
    rng = np.random.default_rng(height * 10007 + width)
    return rng.standard_normal((height + 16, width + 16), np.float32)


def _grainy(image: _Pixels, strength: float, rng: np.random.Generator) -> _Pixels:
    height, width = image.shape[:2]
    down, right = (int(shift) for shift in rng.integers(0, 17, 2))
    noise = _unit_noise(height, width)[down : down + height, right : right + width] * strength
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


# -- the table and the wall behind it: one textured surface per dataset and camera -----------------


@dataclass(frozen=True, slots=True)
class _Surface:
    """What does not move."""

    pixels: _Floats  #: [height, width, 3]
    horizon: float  #: where the table begins, as a fraction of the height
    grain: float  #: strength of the sensor's noise


@lru_cache(maxsize=8)
def _make_surface(
    seed: int, dataset: str, number: int, camera: int, height: int, width: int, close: bool
) -> _Surface:
    """The surface that all episodes of a dataset share, as one camera sees it."""
    rng = seeded(seed, dataset, 3)
    table = _hsv_colour(0.6180339887 * number, rng.uniform(30, 85), rng.uniform(125, 190))
    wall = _hsv_colour(0.6180339887 * number + 0.4, rng.uniform(5, 40), rng.uniform(150, 225))
    material = _MATERIALS[number % len(_MATERIALS)]
    grain = float(rng.uniform(0.85, 1.35))
    rng = seeded(seed, dataset, 4, camera)
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
    return _Surface(pixels.astype(np.float32), horizon, grain)


def _hsv_colour(hue: float, saturation: float, value: float) -> _Floats:
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


# -- depth: the table rising towards the camera, the object before it ------------------------------

_DEPTH_VARIANTS = 2  # of the noise, taken in turn
_FAR, _NEAR = 1600, 500  # millimetres, at the upper and lower edge


class DepthScene:
    """One depth camera's view of one episode; millimetres as uint16 or metres as float32."""

    def __init__(self, view: View, seed: int, episode: int, dtype: str = "uint16") -> None:
        self._view, self._episode, self._dtype = view, episode, dtype
        rng = seeded(seed, view.dataset, episode, view.camera, 5)
        height, width = view.height, view.width
        bumps = cv2.resize(
            rng.normal(0, 60, (5, 7)), (width, height), interpolation=cv2.INTER_CUBIC
        )
        plane = np.linspace(_FAR, _NEAR, height)[:, None] + bumps
        noise = rng.normal(0, 1.2, (_DEPTH_VARIANTS, height, width))
        depth = np.rint(np.clip(plane + noise, 250, 2200))
        self._variants: npt.NDArray[np.uint16] = depth.astype(np.uint16)

    def frame(self, step: int, place: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """The depth [height, width] at a step, with the object at `place`."""
        view = self._view
        image: npt.NDArray[Any] = self._variants[step % _DEPTH_VARIANTS].copy()
        centre = round(float(place[0]) * view.width), round(float(place[1]) * view.height)
        near = int(_FAR + (_NEAR - _FAR) * float(place[1]) - 120 - 300 * float(place[2]))
        cv2.circle(image, centre, max(2, round(0.05 * min(image.shape))), near, -1)
        draw_tag(image, Tag(view.number, self._episode, step, view.camera), 400, 1600)
        if self._dtype == "uint16":
            return image
        metres: npt.NDArray[np.float32] = image.astype(np.float32) / np.float32(1024)
        return metres  # with few bits of mantissa, which packs well


# -- the strip that says which dataset, episode, step and camera a picture shows -------------------

# Two rows of 32 light or dark cells across the full width: 52 bits of content and a 12-bit
# checksum. Its place is a fraction of the height, so it survives JPEG and also resizing, as long
# as a cell stays about two pixels wide.

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
