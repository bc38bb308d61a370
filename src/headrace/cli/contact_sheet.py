"""A contact sheet: pairs of frames with their instructions, as a picture."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog
from headrace.errors import HeadraceError, UsageError
from headrace.measure import theme

_FRAME = (132, 176)  # height and width given to one frame
_CAPTION, _LINE = 46, 15
_GAP = 10
_PAPER, _INK, _SOFT, _GROUND = (
    tuple(bytes.fromhex(colour[1:])) for colour in (theme.PAPER, theme.INK, theme.SOFT, "#e1e1de")
)
_FONT, _SCALE, _POINTS = cv2.FONT_HERSHEY_SIMPLEX, 0.4, 11
_DEFAULT_OFFSET = 5

Image = NDArray[np.uint8]


def write_contact_sheet(catalogs: list[Catalog], path: str, pairs: int | None = None) -> int:
    """Write a picture of frame pairs (t, t + offset) of each dataset; the number of pairs."""
    if not path.lower().endswith((".png", ".jpg", ".jpeg")):
        raise UsageError(
            f"{path!r} does not name a PNG or JPEG file",
            remedy="Give a name that ends in .png or .jpg",
        )
    each = pairs or (8 if len(catalogs) == 1 else 1)
    cells = [cell for catalog in catalogs for cell in _cells(catalog, each)]
    if not cells:
        raise HeadraceError("no dataset has a camera and an episode to show")
    columns = min(3, len(cells)) if len(cells) > 4 else min(2, len(cells))
    rows = math.ceil(len(cells) / columns)
    height, width = cells[0].shape[:2]
    sheet = np.full(
        (rows * (height + _GAP) + _GAP, columns * (width + _GAP) + _GAP, 3), _PAPER, np.uint8
    )
    for number, cell in enumerate(cells):
        top = _GAP + number // columns * (height + _GAP)
        left = _GAP + number % columns * (width + _GAP)
        sheet[top : top + height, left : left + width] = cell
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(path, cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR)):
        raise UsageError(f"the picture {path!r} cannot be written", remedy="Check its folder")
    return len(cells)


def _cells(catalog: Catalog, count: int) -> Iterator[Image]:
    """Pairs from episodes spread over the dataset."""
    if catalog.roles.camera is None:
        return
    known = catalog.roles.known
    offset = known.offset if known else _DEFAULT_OFFSET
    usable = [e for e in range(len(catalog)) if catalog.steps[e] and e not in catalog.quarantined]
    for index in np.linspace(0, len(usable) - 1, min(count, len(usable))).astype(int):
        episode = usable[index]
        steps = int(catalog.steps[episode])
        first = max(0, (steps - 1 - offset) // 2)
        second = min(steps - 1, first + offset)
        yield _cell(catalog, episode, first, second)


def _cell(catalog: Catalog, episode: int, first: int, second: int) -> Image:
    height, width = _FRAME
    cell = np.full((height + _CAPTION, 2 * width + 2, 3), _PAPER, np.uint8)
    for left, t in ((0, first), (width + 2, second)):
        cell[:height, left : left + width] = _fitted(catalog.frame(episode, t), height, width)
    name = catalog.roles.known.name if catalog.roles.known else catalog.name
    info = catalog.info(episode)
    _write(cell, height + _LINE - 2, f"{name}  {info.id}  t = {first}, {second}", _SOFT)
    lines = _wrapped(catalog.instruction(episode, first), 2 * width)
    for number, line in enumerate(lines[:2]):
        _write(cell, height + (2 + number) * _LINE - 2, line, _INK)
    return cell


def _fitted(frame: NDArray[Any], height: int, width: int) -> Image:
    """A frame in colour, as large as fits, on a grey ground."""
    if frame.dtype != np.uint8:
        frame = cv2.normalize(frame.astype(np.float32), None, 0, 255, cv2.NORM_MINMAX)  # type: ignore[call-overload]
    image = np.ascontiguousarray(frame[..., :3], np.uint8)
    if image.shape[-1] < 3:
        image = np.repeat(image[..., :1], 3, axis=-1)
    scale = min(height / image.shape[0], width / image.shape[1])
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    canvas: Image = np.full((height, width, 3), _GROUND, np.uint8)
    top, left = (height - small.shape[0]) // 2, (width - small.shape[1]) // 2
    canvas[top : top + small.shape[0], left : left + small.shape[1]] = small
    return canvas


@cache
def _unicode_font() -> Any:
    """OpenCV's font with all scripts; None before version 5, which lacks it."""
    face = getattr(cv2, "FontFace", None)
    return None if face is None else face("uni")


def _write(image: Image, baseline: int, text: str, colour: tuple[int, ...]) -> None:
    if (font := _unicode_font()) is not None:
        cv2.putText(image, text, (1, baseline), colour, font, _POINTS, 400)
    else:
        cv2.putText(image, _plain(text), (1, baseline), _FONT, _SCALE, colour, 1, cv2.LINE_AA)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and cv2.getTextSize(_plain(longer), _FONT, _SCALE, 1)[0][0] > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _plain(text: str) -> str:
    """Text in the letters of the plain font."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "replace").decode()
