"""One encoded frame of a camera into its place in a batch: decoded, resized, three channels.

| the camera is declared as | in the batch                                                       |
|---------------------------|--------------------------------------------------------------------|
| uint8, 3 channels         | as TFDS gives it, then resized                                     |
| uint8, 1 channel          | decoded to grey as TFDS does, resized, repeated three times        |
| uint8, 4 channels         | the first three: alpha is dropped, not multiplied in               |
| uint8, channels unknown   | decoded to three                                                   |
| uint16 or float32 (depth) | `UsageError`: its range is in no schema, so any scaling to 8 bits  |
|                           | would be a guess that a model trains on without a word             |

What an image decodes to, and which images are refused, is told in `image`.
"""

from __future__ import annotations

from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from headrace.decoding.header import Encoded, ImageHeader, read_header
from headrace.decoding.image import MAX_PIXELS
from headrace.decoding.jpeg import decode_jpeg
from headrace.decoding.png import decode_png
from headrace.decoding.png_stored import INFLATER_BYTES, stored_bytes
from headrace.decoding.resize import Filter, check_filter, resize_into, workspace_bytes
from headrace.errors import ImageError, UsageError

__all__ = ["FrameDecoder", "check_camera"]

_Pixels: TypeAlias = npt.NDArray[np.uint8]

_CHANNELS = (None, 1, 3, 4)


def check_camera(channels: int | None, dtype: str) -> None:
    """`UsageError` unless frames declared like this can become three channels of 8 bits.

    >>> check_camera(3, "uint8")
    """
    if dtype != "uint8":
        raise UsageError(
            f"a camera of {dtype} cannot fill uint8 frames: nothing says how its values scale",
            remedy="Choose a colour or grey camera of uint8; depth can be read by itself.",
        )
    if channels not in _CHANNELS:
        raise UsageError(
            f"a camera of {channels} channels cannot fill frames of 3",
            remedy="Choose a camera of 1, 3 or 4 channels.",
        )


class FrameDecoder:
    """Decodes and resizes frames, in memory that it keeps from one to the next.

    Each thread has its own: two calls at once would write over each other's pixels.

    >>> encoded = cv2.imencode(".png", np.full((6, 8, 3), 7, np.uint8))[1].tobytes()
    >>> frames = np.zeros((2, 4, 4, 3), np.uint8)
    >>> FrameDecoder().decode(encoded, frames[1])
    >>> int(frames[0].max()), int(frames[1].min())
    (0, 7)
    """

    __slots__ = ("_buffer", "_filter", "_max_pixels", "_passing")

    def __init__(self, *, filter: Filter = "bilinear", max_pixels: int = MAX_PIXELS) -> None:
        check_filter(filter)
        self._filter: Filter = filter
        self._max_pixels = max_pixels
        self._buffer: _Pixels = np.empty(0, np.uint8)
        self._passing = 0  # the most that one call took beside the buffer

    def __repr__(self) -> str:
        return f"FrameDecoder(filter={self._filter!r}, scratch_bytes={self.scratch_bytes})"

    @property
    def scratch_bytes(self) -> int:
        """The most memory a call has held so far beside `data` and `out`. Never shrinks.

        The buffer that is kept, for the pixels of JPEGs and the inflated data of PNGs, and what is
        taken and given back in a call: the pixels of a PNG (OpenCV decodes to memory of its own
        and copies them), the state of its inflater and the workspace of the resize.
        """
        return self._buffer.nbytes + self._passing

    def scratch_limit(self, source: tuple[int, int], target: tuple[int, int]) -> int:
        """What `scratch_bytes` stays within while no source has more rows or columns than this.

        For the images that cameras give: not CMYK, not 16 bits in a camera declared as 8.
        """
        pixels = 3 * source[0] * source[1]  # of a JPEG in the buffer, of a PNG twice beside it
        kept = max(pixels, stored_bytes(ImageHeader("png", *source, channels=4, bits=8)))
        resized = target[0] * target[1]
        room = 0
        if self._filter == "area":
            room = 3 * min(source[0], target[0]) * min(source[1], target[1])
        elif self._filter == "nearest":
            room = 3 * target[0] * source[1]
        return kept + 2 * pixels + INFLATER_BYTES + resized + room

    def decode(
        self, data: Encoded, out: _Pixels, *, channels: int | None = 3, dtype: str = "uint8"
    ) -> None:
        """Decode a JPEG or PNG into C-contiguous uint8 `out` [H, W, 3], resized if need be.

        `channels` and `dtype` are those that the schema declares for the camera. After an error
        the contents of `out` are undefined; nothing outside of it is touched.
        """
        check_camera(channels, dtype)
        _check_place(out)
        header = self._header_of(data)
        size = header.height, header.width
        if channels == 1:
            self._decode_grey(data, header, out)
            return
        fits = size == out.shape[:2]
        if header.encoding == "jpeg":
            pixels = out if fits else self._scratch(3 * size[0] * size[1]).reshape(*size, 3)
            # TensorFlow refuses a JPEG declared with alpha; asking for 4 does so too.
            decode_jpeg(data, header, 4 if channels == 4 else 3, pixels)
        else:
            pixels = self._png(data, header, 3)
            if fits:
                out[...] = pixels
        if not fits:
            self._resize(pixels, out)

    def _decode_grey(self, data: Encoded, header: ImageHeader, out: _Pixels) -> None:
        """The resize comes before the repeat: a third of the work."""
        size, target = (header.height, header.width), (out.shape[0], out.shape[1])
        here = size[0] * size[1] if header.encoding == "jpeg" else 0
        there = target[0] * target[1] if size != target else 0
        if header.encoding == "jpeg":
            scratch = self._scratch(here + there)
            grey = decode_jpeg(data, header, 1, scratch[:here].reshape(*size, 1))
        else:
            grey = self._png(data, header, 1)
            scratch = self._scratch(there)  # only now: the PNG itself passed through it
        if there:
            resized = scratch[here:].reshape(*target, 1)
            self._resize(grey, resized)
            grey = resized
        cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB, dst=out)

    def _png(self, data: Encoded, header: ImageHeader, channels: int) -> _Pixels:
        pixels: _Pixels = decode_png(data, header, channels, room=self._scratch)
        # OpenCV copies them to an array; 16 bits are held, twice for a moment, beside their 8.
        own = pixels.nbytes * (5 if header.bits == 16 else 2)
        self._passing = max(self._passing, own + INFLATER_BYTES)
        return pixels

    def _resize(self, pixels: _Pixels, out: _Pixels) -> None:
        if self._filter != "bilinear":
            source, target = pixels.shape[:2], out.shape[:2]
            room = workspace_bytes(source, target, out.shape[2], self._filter)
            own = 0 if np.may_share_memory(pixels, self._buffer) else pixels.nbytes
            self._passing = max(self._passing, room + own)
        resize_into(pixels, out, self._filter)

    def _scratch(self, size: int) -> _Pixels:
        """The first bytes of the buffer, which grows to the largest image seen."""
        if self._buffer.size < size:
            self._buffer = np.empty(0, np.uint8)  # let go of the old one before taking the new
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]

    def _header_of(self, data: Encoded) -> ImageHeader:
        header = read_header(data)
        if header.height * header.width > self._max_pixels:
            raise ImageError(
                f"{header.encoding.upper()} header claims {header.height} x {header.width} "
                f"pixels, over the limit of {self._max_pixels:,}",
                remedy="If the image is meant to be that large, raise max_pixels.",
            )
        return header


def _check_place(out: _Pixels) -> None:
    if (
        out.ndim != 3
        or out.shape[2] != 3
        or not out.size
        or out.dtype != np.uint8
        or not out.flags.c_contiguous
        or not out.flags.writeable
    ):
        raise UsageError(
            f"cannot decode a frame into {out.dtype} {list(out.shape)}, "
            f"contiguous={out.flags.c_contiguous}, writeable={out.flags.writeable}",
            remedy="Give a writeable, C-contiguous uint8 array [height, width, 3].",
        )
