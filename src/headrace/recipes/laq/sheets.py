"""The pictures of a validation, drawn from what was kept of it: names to RGB images."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.recipes.laq.buckets import Bucket
from headrace.recipes.laq.canvas import LINE, Image, blank, write
from headrace.recipes.laq.pictures import (
    action_scatter,
    codebook_histogram,
    reconstruction_grid,
    sequence_histogram,
    transfer_grid,
)

__all__ = ["Moved", "dataset_sheet", "fitted", "overview_sheets", "taken_in_turn"]

_TILE = 128  #: pixels that a frame has at most on a sheet: full size would be megabytes a picture
_SMALL = 96  #: and that smaller frames are enlarged to
_ROWS = 4  #: samples on the sheet of a dataset
_DOTS = 500  #: actions drawn; each takes microseconds, and more only cover one another


@dataclass(frozen=True, slots=True)
class Moved:
    """Samples under the actions of others, for a picture."""

    frames: NDArray[np.uint8]  #: [B, 3, 2, H, W]
    donors: NDArray[np.uint8]  #: [B, 3, 2, H, W] whose actions were taken
    made: NDArray[np.uint8]  #: [B, 3, H, W]


def overview_sheets(
    buckets: list[tuple[str, Bucket]],
    tracked: list[tuple[str, int]],
    moved: Moved | None,
    codebook_size: int,
    title: str,
) -> dict[str, Image]:
    """The pictures of a validation as a whole, by name.

    `tracked` are the samples of the overview, as name and number in the bucket.
    """
    if not buckets:
        return {}
    kept = dict(buckets)
    codes = np.concatenate([bucket.indices() for _, bucket in buckets])
    sheets = {
        "codebook": codebook_histogram(codes, codebook_size, f"codebook, {title}"),
        "sequences": sequence_histogram(codes, codebook_size, title=f"sequences, {title}"),
    }
    shown = [(name, i) for name, i in tracked if i < len(kept[name].recon)]
    if shown:
        frames = np.stack([kept[name].frames[i] for name, i in shown])
        recon = np.stack([kept[name].recon[i] for name, i in shown])
        names = [name for name, _ in shown]
        sheets["reconstruction"] = reconstruction_grid(fitted(frames), fitted(recon), names)
    if moved is not None:
        frames, donors = fitted(moved.frames), fitted(moved.donors)
        sheets["transfer"] = transfer_grid(frames, donors, fitted(moved.made))
    scatter = _scatter([bucket for _, bucket in buckets], codebook_size, f"actions, {title}")
    if scatter is not None:
        sheets["actions"] = scatter
    return sheets


def taken_in_turn(buckets: list[tuple[str, Bucket]], count: int) -> list[tuple[str, int]]:
    """The first pictures of the datasets, one of each in turn: (dataset, number in its bucket)."""
    deepest = max((len(bucket.frames) for _, bucket in buckets), default=0)
    turns = [(n, i) for i in range(deepest) for n, b in buckets if i < len(b.frames)]
    return turns[:count]


def fitted(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [B, 3, ..., H, W] at the size that frames have on a sheet, about."""
    height, width = images.shape[-2:]
    longer = max(height, width)
    if longer <= _TILE:
        times = max(1, round(_SMALL / longer))  # pixels are seen as they are
        return images.repeat(times, -2).repeat(times, -1)
    factor = _TILE / longer
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    planes = images.reshape(-1, height, width)
    small = np.empty((len(planes), size[1], size[0]), np.uint8)
    for plane, to in zip(planes, small, strict=True):
        cv2.resize(plane, size, to, interpolation=cv2.INTER_AREA)
    return small.reshape(*images.shape[:-2], size[1], size[0])


def _scatter(buckets: list[Bucket], codebook_size: int, title: str) -> Image | None:
    """Actions coloured by the first code, None without actions of two numbers."""
    wide = {action.shape[-1] for bucket in buckets for action in bucket.actions[:1]}
    if not wide or min(wide) < 2:
        return None
    pairs = [np.stack(bucket.actions)[:, :2] for bucket in buckets if bucket.actions]
    firsts = [b.indices()[: len(b.actions), 0] for b in buckets if b.actions]
    each = max(1, _DOTS // len(pairs))  # as many of every dataset
    actions = np.concatenate([x[:each] for x in pairs])
    codes = np.concatenate([x[:each] for x in firsts])
    return action_scatter(actions, codes, codebook_size, title=title)


def dataset_sheet(bucket: Bucket, codebook_size: int, title: str) -> Image:
    """A dataset: samples on the left, the use of its codes and its actions on the right."""
    parts = [codebook_histogram(bucket.indices(), codebook_size)]
    if (scatter := _scatter([bucket], codebook_size, "")) is not None:
        parts.append(scatter)
    right = _stacked(parts)
    if not bucket.recon:
        return _titled(right, title)
    count = min(_ROWS, len(bucket.recon))
    frames, recon = np.stack(bucket.frames[:count]), np.stack(bucket.recon[:count])
    grid = reconstruction_grid(fitted(frames), fitted(recon))
    sheet = blank(max(len(grid), len(right)), grid.shape[1] + 8 + right.shape[1])
    sheet[: len(grid), : grid.shape[1]] = grid
    sheet[: len(right), grid.shape[1] + 8 :] = right
    return _titled(sheet, title)


def _titled(image: Image, title: str) -> Image:
    sheet = blank(LINE + len(image), image.shape[1])
    sheet[LINE:] = image
    write(sheet, 4, LINE - 4, title)
    return sheet


def _stacked(images: list[Image]) -> Image:
    sheet = blank(sum(len(image) for image in images), max(image.shape[1] for image in images))
    top = 0
    for image in images:
        sheet[top : top + len(image), : image.shape[1]] = image
        top += len(image)
    return sheet
