"""How the same few samples look as training goes on, and the loss beside them: one picture.

`ValidationPictures` writes what this reads: `samples.png` into the folder of every step (a row a
sample: t, t+k and the prediction, without gaps or words) and the file `metrics.csv`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.errors import UsageError
from headrace.recipes.laq.canvas import (
    GREY,
    LINE,
    Image,
    blank,
    line,
    palette,
    save_png,
    write,
)

__all__ = [
    "METRICS",
    "SAMPLES",
    "add_row",
    "progress_strip",
    "read_rows",
    "sample_tiles",
    "step_folder",
    "step_folders",
]

SAMPLES = "samples.png"
METRICS = "metrics.csv"
_GAP = 6
_PLOT_WIDTH = 300
_MARGIN = 52  # left of the curves, for numbers
_NAMES = ("train/loss", "val/loss", "val/recon_mse", "val/copy_mse")


def step_folder(folder: Path, step: int) -> Path:
    """Where the pictures of a step are."""
    return folder / f"step_{step:08d}"


def step_folders(folder: Path) -> list[tuple[int, Path]]:
    """The steps that have pictures, in their order."""
    found = []
    for path in folder.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and path.is_dir():
            found.append((int(number), path))
    return sorted(found)


def sample_tiles(frames: NDArray[np.uint8], recon: NDArray[np.uint8]) -> Image:
    """frames [B, 3, 2, H, W] and recon [B, 3, H, W] as one image: rows of t, t+k, prediction."""
    columns = [frames[:, :, 0], frames[:, :, -1], recon]
    wide = np.concatenate(columns, axis=-1)  # [B, 3, H, 3W]
    tall = np.concatenate(list(wide), axis=1)  # [3, B*H, 3W]
    return np.ascontiguousarray(np.moveaxis(tall, 0, -1))


def add_row(path: Path, step: int, values: Mapping[str, float]) -> None:
    """Add the numbers of a step to a CSV file; rows of this step and later ones are replaced.

    So a resumed run writes over what came after its checkpoint.
    """
    rows = [row for row in read_rows(path) if row["step"] < step] if path.exists() else []
    rows.append({"step": float(step), **values})
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with aside.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**row, "step": int(row["step"])} for row in rows)
    aside.replace(path)


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of such a file, in the order of steps; what is not known of a step is left out."""
    with path.open(newline="") as file:
        rows = [{n: float(v) for n, v in row.items() if v} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: row["step"])


def progress_strip(folder: str | Path, target: str | Path | None = None, rows: int = 4) -> Path:
    """Draw how a run has learned, from its folder of pictures; written to its progress.png.

    Left: samples of the validation, t and t+k, and the prediction at the first step with
    pictures, one in the middle and the last. Right: the losses, and below them the error of the
    prediction beside that of a copy of frame t.
    """
    folder = Path(folder)
    steps = [(step, path / SAMPLES) for step, path in step_folders(folder)]
    steps = [(step, path) for step, path in steps if path.exists()]
    if not steps:
        raise UsageError(
            f"{str(folder)!r} has no pictures of a validation",
            remedy="Give the folder that ValidationPictures wrote to",
        )
    chosen = sorted({0, len(steps) // 2, len(steps) - 1})
    strip = _strip([(steps[i][0], _read(steps[i][1])) for i in chosen], rows)
    table = read_rows(folder / METRICS) if (folder / METRICS).exists() else []
    curves = _curves(table, strip.shape[0])
    sheet = blank(strip.shape[0], strip.shape[1] + curves.shape[1])
    sheet[:, : strip.shape[1]] = strip
    sheet[:, strip.shape[1] :] = curves
    return save_png(sheet, target or folder / "progress.png")


def _read(path: Path) -> Image:
    image = cv2.imread(str(path))
    if image is None:
        raise UsageError(f"{str(path)!r} is no picture", remedy="Remove it")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _strip(images: list[tuple[int, Image]], rows: int) -> Image:
    """Columns t, t+k and the prediction of each step."""
    last = images[-1][1]
    size = last.shape[1] // 3
    rows = min(rows, len(last) // size)
    same = [(step, image) for step, image in images if image.shape == last.shape]
    columns = [("t", last[:, :size]), ("t+k", last[:, size : 2 * size])]
    columns += [(f"step {step}", image[:, 2 * size :]) for step, image in same]
    scale = max(1, round(96 / size))  # small frames are drawn larger
    side, pitch = size * scale, size * scale + _GAP
    sheet = blank(LINE + _GAP + rows * pitch, _GAP + len(columns) * pitch)
    for j, (head, column) in enumerate(columns):
        left = _GAP + j * pitch
        write(sheet, left, LINE - 3, head)
        for i in range(rows):
            tile = column[i * size : (i + 1) * size].repeat(scale, 0).repeat(scale, 1)
            top = LINE + _GAP + i * pitch
            sheet[top : top + side, left : left + side] = tile
    return sheet


def _curves(table: list[dict[str, float]], height: int) -> Image:
    """Two plots, one above the other: losses, and errors of the picture."""
    sheet = blank(height, _MARGIN + _PLOT_WIDTH + _GAP)
    half = height // 2
    _plot(sheet[:half], table, _NAMES[:2])
    _plot(sheet[half:], table, _NAMES[2:])
    return sheet


def _plot(sheet: Image, table: list[dict[str, float]], names: tuple[str, ...]) -> None:
    """Curves over the steps, the values on a logarithmic axis."""
    top, bottom = LINE + _GAP, sheet.shape[0] - LINE - _GAP
    left, right = _MARGIN, sheet.shape[1] - _GAP
    curves = {
        name: [(r["step"], r[name]) for r in table if r.get(name, 0) > 0 and math.isfinite(r[name])]
        for name in names
    }
    points = [point for curve in curves.values() for point in curve]
    if not points or bottom - top < LINE:
        return
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = math.log(high / low) or 1.0

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - first) / ((last - first) or 1.0)
        return left + round(across * (right - left)), bottom - round(
            math.log(y / low) / span * (bottom - top)
        )

    line(sheet, (left, top), (left, bottom), GREY)
    line(sheet, (left, bottom), (right, bottom), GREY)
    write(sheet, 2, top + 10, f"{high:.3g}", GREY)
    write(sheet, 2, bottom, f"{low:.3g}", GREY)
    write(sheet, left, bottom + LINE - 2, f"step {first:.0f}", GREY)
    write(sheet, right - 64, bottom + LINE - 2, f"step {last:.0f}", GREY)
    at = left
    for (name, curve), colour in zip(curves.items(), palette(4)[::2], strict=False):
        places = [place(x, y) for x, y in curve]
        for start, end in pairwise(places):
            line(sheet, start, end, colour)
        write(sheet, at, LINE - 3, name, colour)
        at += 8 * len(name) + 12
