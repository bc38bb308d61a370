"""Resizing into the caller's memory, without keeping the aspect ratio.

| filter     | pixels                                                                              |
|------------|-------------------------------------------------------------------------------------|
| `bilinear` | `tf.image.resize(image, size)` rounded, to within 1 level: half-pixel centres, no   |
|            | antialias                                                                           |
| `area`     | a dimension that shrinks is averaged, as TensorFlow's `area` to within 1 level; one |
|            | that grows is interpolated as by `bilinear`                                         |
| `nearest`  | TensorFlow's `nearest`, exactly                                                     |

Not offered, because OpenCV's pixels differ from TensorFlow's: bicubic (another kernel, 25 levels
apart), bilinear with antialias (it has none), area where the image grows (it picks the wrong
neighbour at some pixels), and its own nearest (it resolves ties differently).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError

Filter: TypeAlias = Literal["bilinear", "area", "nearest"]

_FILTERS = get_args(Filter)
_Pixels: TypeAlias = npt.NDArray[np.uint8]
_Size: TypeAlias = tuple[int, int]


def resize_into(pixels: _Pixels, out: _Pixels, filter: Filter = "bilinear") -> None:
    """Resize uint8 [h, w, C] into C-contiguous [H, W, C], with one channel or three.

    It releases the GIL. `out` must not overlap `pixels`.

    >>> frames = np.zeros((2, 4, 4, 3), np.uint8)
    >>> resize_into(np.full((8, 6, 3), 200, np.uint8), frames[1])
    >>> int(frames[0].max()), int(frames[1].min())
    (0, 200)
    """
    check_filter(filter)
    _check_arrays(pixels, out)
    source, target = _size(pixels), _size(out)
    if source == target:
        out[...] = pixels
    elif filter == "bilinear":
        _opencv(pixels, out, cv2.INTER_LINEAR)
    elif filter == "area":
        _area(pixels, out, source, target)
    else:
        _nearest(pixels, out, source, target)


def check_filter(filter: str) -> None:
    """`UsageError` that lists the filters unless this is one of them."""
    if filter not in _FILTERS:
        raise UsageError(
            f"unknown resize filter {filter!r}",
            remedy=f"Use one of {', '.join(_FILTERS)}.",
        )


def workspace_bytes(source: _Size, target: _Size, channels: int, filter: Filter) -> int:
    """The memory that `resize_into` allocates temporarily, beside source and target.

    >>> workspace_bytes((480, 640), (256, 256), 3, "bilinear")
    0
    """
    if source == target:
        return 0
    if filter == "nearest":
        return target[0] * source[1] * channels
    if filter == "area":
        halfway = _halfway(source, target)
        return 0 if halfway is None else halfway[0] * halfway[1] * channels
    return 0


def use_one_thread_per_call() -> int:
    """Make OpenCV work in the calling thread only; returns its former number of threads.

    For programs that run one thread per core: OpenCV's helper threads would compete for the same
    cores. It also keeps OpenCV from holding a thread pool, which a fork would lose. The setting is
    OpenCV's, so it affects the whole process; `cv2.setNumThreads(former)` undoes it. It changes
    times, never pixels.
    """
    former = int(cv2.getNumThreads())
    cv2.setNumThreads(1)
    return former


def _check_arrays(pixels: _Pixels, out: _Pixels) -> None:
    if (
        pixels.ndim != 3
        or out.ndim != 3
        or pixels.shape[2] != out.shape[2]
        or out.shape[2] not in (1, 3)
        or not (pixels.size and out.size)
        or pixels.dtype != np.uint8
        or out.dtype != np.uint8
        or not out.flags.c_contiguous
        or not out.flags.writeable
    ):
        raise UsageError(
            f"cannot resize {pixels.dtype} {list(pixels.shape)} into {out.dtype} "
            f"{list(out.shape)}, contiguous={out.flags.c_contiguous}, "
            f"writeable={out.flags.writeable}",
            remedy="Give two uint8 arrays [height, width, channels] with 1 or 3 channels each, "
            "the second writeable and C-contiguous.",
        )


def _size(image: npt.NDArray[Any]) -> _Size:
    return image.shape[0], image.shape[1]


def _opencv(pixels: _Pixels, out: _Pixels, how: int) -> None:
    if out.shape[2] == 1:  # OpenCV returns grey images without their third axis
        pixels, out = pixels[..., 0], out[..., 0]
    written = cv2.resize(pixels, (out.shape[1], out.shape[0]), dst=out, interpolation=how)
    if written is not out:  # OpenCV allocated memory of its own: not seen so far
        out[...] = written


def _area(pixels: _Pixels, out: _Pixels, source: _Size, target: _Size) -> None:
    """OpenCV averages correctly only if neither dimension grows, so shrink first, then grow."""
    halfway = _halfway(source, target)
    if halfway is not None:
        smaller = np.empty((*halfway, out.shape[2]), np.uint8)
        _opencv(pixels, smaller, cv2.INTER_AREA)
        _opencv(smaller, out, cv2.INTER_LINEAR)
    elif target[0] <= source[0] and target[1] <= source[1]:
        _opencv(pixels, out, cv2.INTER_AREA)
    else:
        _opencv(pixels, out, cv2.INTER_LINEAR)


def _halfway(source: _Size, target: _Size) -> _Size | None:
    """Where one dimension shrinks and the other grows: the size with the first one shrunk."""
    if (target[0] - source[0]) * (target[1] - source[1]) >= 0:
        return None
    return min(source[0], target[0]), min(source[1], target[1])


def _nearest(pixels: _Pixels, out: _Pixels, source: _Size, target: _Size) -> None:
    rows = np.take(pixels, _neighbours(source[0], target[0]), axis=0)
    # "clip" never clips here: it lets numpy write to `out` without a buffer in between.
    np.take(rows, _neighbours(source[1], target[1]), axis=1, out=out, mode="clip")


@lru_cache(maxsize=256)
def _neighbours(source: int, target: int) -> npt.NDArray[np.intp]:
    """For each pixel of the target its pixel of the source, in TensorFlow's arithmetic."""
    scale = np.float32(source) / np.float32(target)
    centres = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale
    found: npt.NDArray[np.intp] = np.minimum(np.floor(centres).astype(np.intp), source - 1)
    found.flags.writeable = False
    return found
