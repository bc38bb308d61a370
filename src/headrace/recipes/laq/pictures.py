"""Pictures of what the codes have learned: arrays in, RGB images out."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.recipes.laq.canvas import GREY, INK, LINE, Image, blank, palette, write
from headrace.recipes.laq.usage import code_usage, sequence_usage

__all__ = [
    "action_scatter",
    "as_image",
    "codebook_histogram",
    "reconstruction_grid",
    "sequence_histogram",
    "transfer_grid",
]

_GAP = 4
_PLOT = (220, 420)  # height and width of the area of a plot
_LEFT, _TOP = 48, 2 * LINE + 8  # of the plot on its sheet


def as_image(frame: NDArray[Any]) -> Image:
    """A frame [3, H, W], uint8 or in [0, 1], as an image [H, W, 3]."""
    if frame.dtype != np.uint8:
        frame = np.rint(np.clip(frame.astype(np.float32), 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(frame, 0, -1))


def reconstruction_grid(
    frames: NDArray[Any], recon: NDArray[Any], titles: list[str] | None = None
) -> Image:
    """A row a sample: frame t, frame t+k, and what the model makes of t and the action.

    frames [B, 3, 2, H, W], recon [B, 3, H, W]; `titles` stand above the rows.
    """
    columns = [frames[:, :, 0], frames[:, :, -1], recon]
    return _table(columns, ["t", "t+k", "recon"], titles)


def transfer_grid(
    frames: NDArray[Any], donors: NDArray[Any], moved: NDArray[Any], titles: list[str] | None = None
) -> Image:
    """A row a sample: the donor's two frames, frame t of another sample, and the action there.

    frames and donors [B, 3, 2, H, W], moved [B, 3, H, W].
    """
    columns = [donors[:, :, 0], donors[:, :, -1], frames[:, :, 0], moved]
    return _table(columns, ["donor t", "donor t+k", "t", "t + action"], titles)


def _table(columns: list[NDArray[Any]], heads: list[str], titles: list[str] | None) -> Image:
    rows, _, height, width = columns[0].shape
    above = LINE if titles else 0
    pitch = height + above + _GAP
    sheet = blank(LINE + _GAP + rows * pitch, len(columns) * (width + _GAP) + _GAP)
    for j, (column, head) in enumerate(zip(columns, heads, strict=True)):
        left = _GAP + j * (width + _GAP)
        write(sheet, left, LINE - 3, head)
        for i in range(rows):
            top = LINE + _GAP + i * pitch + above
            sheet[top : top + height, left : left + width] = as_image(column[i])
    for i, title in enumerate(titles or []):
        write(sheet, _GAP, LINE + _GAP + i * pitch + LINE - 4, title, GREY)
    return sheet


def codebook_histogram(indices: NDArray[Any], codebook_size: int, title: str = "") -> Image:
    """How often each code is used; indices [N, codes]. The heading has use and entropy."""
    usage = code_usage(indices, codebook_size)
    heading = (
        f"codes used {usage.used} / {codebook_size} ({usage.utilisation:.0%}), "
        f"entropy {usage.entropy:.2f} of {np.log2(codebook_size):.2f} bit"
    )
    labels = [str(code) for code in range(codebook_size)]
    return _bars(usage.counts, labels, palette(codebook_size), title, heading)


def sequence_histogram(
    indices: NDArray[Any], codebook_size: int, shown: int = 24, title: str = ""
) -> Image:
    """How often each sequence of codes is used, most used first; indices [N, codes]."""
    usage = sequence_usage(indices, codebook_size)
    heading = (
        f"{usage.unique} different sequences of {usage.possible} in {usage.total} samples, "
        f"entropy {usage.entropy:.2f} bit"
    )
    names = ["".join(_digit(code) for code in row) for row in usage.sequences[:shown]]
    colours = palette(codebook_size)
    firsts = [colours[int(row[0])] for row in usage.sequences[:shown]]
    return _bars(usage.counts[:shown], names, firsts, title, heading)


def action_scatter(
    actions: NDArray[Any],
    first_code: NDArray[Any],
    codebook_size: int,
    dims: tuple[int, int] = (0, 1),
    title: str = "",
) -> Image:
    """Two numbers of the real actions [N, A] as dots, coloured by the first code [N].

    The axes end at the 1st and 99th percentile, so that a few wild actions do not hide the rest;
    those are drawn at the edge.
    """
    sheet, height, width = _frame(title, f"{len(actions)} actions, numbers {dims[0]} and {dims[1]}")
    colours = palette(codebook_size)
    points = np.asarray(actions, np.float64)[:, list(dims)]
    if len(points):
        low, high = np.percentile(points, 1, axis=0), np.percentile(points, 99, axis=0)
        span = np.where(high > low, high - low, 1.0)
        place = np.clip((points - low) / span, 0, 1)
        for (x, y), code in zip(place, first_code, strict=True):
            at = (_LEFT + round(x * (width - 1)), _TOP + round((1 - y) * (height - 1)))
            cv2.circle(sheet, at, 2, colours[int(code)], -1, cv2.LINE_AA)
        write(sheet, 2, _TOP + 10, f"{high[1]:.3g}", GREY)
        write(sheet, 2, _TOP + height, f"{low[1]:.3g}", GREY)
        write(sheet, _LEFT, _TOP + height + LINE, f"{low[0]:.3g}", GREY)
        write(sheet, _LEFT + width - 40, _TOP + height + LINE, f"{high[0]:.3g}", GREY)
    for code, colour in enumerate(colours[:16]):
        write(sheet, _LEFT + width + 8, _TOP + 12 + code * LINE, f"{code}", colour)
    return sheet


def _digit(code: int) -> str:
    """A code in one letter where that is possible."""
    return "0123456789abcdefghijklmnopqrstuvwxyz"[code] if code < 36 else f"<{code}>"


def _frame(title: str, heading: str) -> tuple[Image, int, int]:
    """A sheet with a heading and axes; and the height and width between them."""
    height, width = _PLOT
    sheet = blank(_TOP + height + 2 * LINE, _LEFT + width + 40)
    write(sheet, 4, LINE - 3, title)
    write(sheet, 4, 2 * LINE - 3, heading, GREY if title else INK)
    corner = (_LEFT - 1, _TOP + height)
    cv2.line(sheet, (_LEFT - 1, _TOP), corner, GREY, 1)
    cv2.line(sheet, corner, (_LEFT + width, _TOP + height), GREY, 1)
    return sheet, height, width


def _bars(
    counts: NDArray[Any],
    labels: list[str],
    colours: list[tuple[int, int, int]],
    title: str,
    heading: str,
) -> Image:
    sheet, height, width = _frame(title, heading)
    most = max(1, int(counts.max(initial=0)))
    pitch = width / max(1, len(counts))
    thin = max(1, round(pitch * 0.8))
    for i, count in enumerate(counts):
        left, tall = _LEFT + round(i * pitch), round(int(count) / most * (height - 4))
        sheet[_TOP + height - tall : _TOP + height, left : left + thin] = colours[i]
        wide = pitch >= 8 * len(labels[i])  # else every other label, on two lines
        below = LINE if wide or i % 2 == 0 else 2 * LINE - 3
        write(sheet, left, _TOP + height + below - 3, labels[i], GREY)
    write(sheet, 2, _TOP + 10, f"{most}", GREY)
    return sheet
