"""Encoded images into pixels: any image as TFDS decodes it, and a camera's frame into its batch.

`decode_image` gives, bit for bit, what `tfds.features.Image` gives through TensorFlow. What an
image decodes to, by the channels requested (none: as stored):

| stored                          | none | 1 | 2 | 3 | 4 |
|---------------------------------|------|---|---|---|---|
| JPEG grey, colour               | =    | = | - | = | - |
| JPEG CMYK                       | = 3  | - | - | = | - |
| PNG grey, 1 to 16 bits          | =    | = | x | = | = |
| PNG grey with transparent value | =    | = | x | = | x |
| PNG grey and alpha              | =    | = | + | = | = |
| PNG RGB, palette (with alpha)   | =    | = | x | = | = |
| the same with gamma or profile  | =    | x | x | = | = |

`=` equal to `tf.image.decode_image(data, channels, dtype)`; `-` TensorFlow refuses it, and so do
we; `+` TensorFlow refuses 2 channels, and the pixels are those it gives for none; `x` an
`ImageError`, because the pixels would differ (for 2 there are none to compare with). The table
holds for `uint8` and `uint16`; a JPEG in `uint16` is multiplied by 256. `float32` is what TFDS
stores as an RGBA PNG of four bytes a pixel: [H, W, 1].

Stricter than TensorFlow: flipped bits in a JPEG that libjpeg notices, which TensorFlow decodes to
wrong pixels with a warning, are an `ImageError`; so are arithmetic coding, unusual chroma
subsampling, more than 100 progressive scans, a misplaced palette or transparency chunk and a wrong
CRC of any PNG chunk. Less strict in one respect that only hand-made data has: see `png`. GIF and
BMP are not supported.

`FrameDecoder` fills a frame of a batch, which always has three channels of uint8:

| the camera is declared as | in the batch                                                       |
|---------------------------|--------------------------------------------------------------------|
| uint8, 3 channels         | as TFDS gives it, then resized                                     |
| uint8, 1 channel          | decoded to grey as TFDS does, resized, repeated three times        |
| uint8, 4 channels         | the first three: alpha is dropped, not multiplied in               |
| uint8, channels unknown   | decoded to three                                                   |
| uint16 or float32 (depth) | `UsageError`: no schema gives its range, so any scaling to 8 bits  |
|                           | would be a guess that a model silently trains on                   |
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import numpy.typing as npt

from headrace.decoding.header import MAX_PIXELS, Encoded, ImageHeader, read_header
from headrace.decoding.jpeg import decode_jpeg
from headrace.decoding.png import INFLATER_BYTES, decode_png, stored_bytes
from headrace.decoding.resize import Filter, check_filter, resize_into, workspace_bytes
from headrace.errors import ImageError, UsageError

PixelType: TypeAlias = Literal["uint8", "uint16", "float32"]

_Pixels: TypeAlias = npt.NDArray[np.uint8]


def decode_image(
    data: Encoded,
    *,
    channels: int | None = None,
    dtype: PixelType = "uint8",
    max_pixels: int = MAX_PIXELS,
) -> npt.NDArray[Any]:
    """The pixels [H, W, C] of a JPEG or PNG; `channels=None` keeps those it is stored with.

    The size is checked against `max_pixels` before memory is allocated.

    >>> encoded = cv2.imencode(".png", np.zeros((4, 6), np.uint16))[1].tobytes()
    >>> decode_image(encoded, channels=1, dtype="uint16").shape
    (4, 6, 1)
    """
    if dtype not in get_args(PixelType):
        raise UsageError(
            f"images cannot be decoded to {dtype!r}", remedy="Use uint8, uint16 or float32."
        )
    if channels not in (None, 0, 1, 2, 3, 4) or (dtype == "float32" and (channels or 1) != 1):
        raise UsageError(
            f"images cannot be decoded to {channels} channels of {dtype}",
            remedy="Use 1, 3 or 4 of uint8 or uint16, or 1 of float32.",
        )
    header = _header_within(data, max_pixels)
    if header.encoding == "jpeg":
        if dtype == "float32":
            raise ImageError("a JPEG cannot hold float32 pixels", remedy="Decode it to uint8.")
        pixels = decode_jpeg(data, header, channels)
        return pixels if dtype == "uint8" else pixels * np.uint16(256)
    if dtype == "float32":
        return decode_png(data, header, 4).view(np.float32)
    return decode_png(data, header, channels, bits=8 if dtype == "uint8" else 16)


def check_camera(channels: int | None, dtype: str) -> None:
    """`UsageError` unless frames declared like this can become three channels of 8 bits.

    >>> check_camera(3, "uint8")
    """
    if dtype != "uint8":
        raise UsageError(
            f"a camera of {dtype} cannot fill uint8 frames: nothing says how its values scale",
            remedy="Choose a colour or grey camera of uint8; depth can be read separately.",
        )
    if channels not in (None, 1, 3, 4):
        raise UsageError(
            f"a camera of {channels} channels cannot fill frames of 3",
            remedy="Choose a camera of 1, 3 or 4 channels.",
        )


class FrameDecoder:
    """Decodes and resizes frames, in a buffer that it keeps from one call to the next.

    Each thread needs its own: two calls at once would overwrite each other's pixels.

    >>> encoded = cv2.imencode(".png", np.full((6, 8, 3), 7, np.uint8))[1].tobytes()
    >>> frames = np.zeros((2, 4, 4, 3), np.uint8)
    >>> FrameDecoder().decode(encoded, frames[1])
    >>> int(frames[0].max()), int(frames[1].min())
    (0, 7)
    """

    __slots__ = ("_buffer", "_filter", "_max_pixels", "_temporary", "resize_s")

    def __init__(self, *, filter: Filter = "bilinear", max_pixels: int = MAX_PIXELS) -> None:
        check_filter(filter)
        self._filter: Filter = filter
        self._max_pixels = max_pixels
        self._buffer: _Pixels = np.empty(0, np.uint8)
        self._temporary = 0  # the most that one call allocated beside the buffer
        self.resize_s = 0.0  #: seconds of all calls so far that went into resizing

    def __repr__(self) -> str:
        return f"FrameDecoder(filter={self._filter!r}, scratch_bytes={self.scratch_bytes})"

    @property
    def scratch_bytes(self) -> int:
        """The most memory a call has held so far beside `data` and `out`. Never shrinks.

        It is the buffer, for the pixels of JPEGs and the inflated data of PNGs, and what a call
        allocates and frees: the pixels of a PNG (OpenCV decodes to memory of its own and copies
        them), the state of the inflater and the workspace of the resize.
        """
        return self._buffer.nbytes + self._temporary

    def scratch_limit(self, source: tuple[int, int], target: tuple[int, int]) -> int:
        """An upper bound of `scratch_bytes` while no source has more rows or columns than this.

        It holds for the images that cameras give: not CMYK, not 16 bits in a camera declared as 8.
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
        the contents of `out` are undefined; nothing outside of it is written.
        """
        check_camera(channels, dtype)
        _check_out(out)
        header = _header_within(data, self._max_pixels)
        size = header.height, header.width
        if channels == 1:
            self._decode_grey(data, header, out)
            return
        fits = size == out.shape[:2]
        if header.encoding == "jpeg":
            pixels = out if fits else self._scratch(3 * size[0] * size[1]).reshape(*size, 3)
            # TensorFlow refuses a JPEG declared with alpha; with 4 channels decode_jpeg does too.
            decode_jpeg(data, header, 4 if channels == 4 else 3, pixels)
        else:
            pixels = self._png(data, header, 3)
            if fits:
                out[...] = pixels
        if not fits:
            self._resize(pixels, out)

    def _decode_grey(self, data: Encoded, header: ImageHeader, out: _Pixels) -> None:
        """Resize one channel and then repeat it: a third of the work."""
        size, target = (header.height, header.width), (out.shape[0], out.shape[1])
        here = size[0] * size[1] if header.encoding == "jpeg" else 0
        there = target[0] * target[1] if size != target else 0
        if header.encoding == "jpeg":
            scratch = self._scratch(here + there)
            grey = decode_jpeg(data, header, 1, scratch[:here].reshape(*size, 1))
        else:
            grey = self._png(data, header, 1)
            scratch = self._scratch(there)  # only now: the PNG was inflated in it
        if there:
            resized = scratch[here:].reshape(*target, 1)
            self._resize(grey, resized)
            grey = resized
        cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB, dst=out)

    def _png(self, data: Encoded, header: ImageHeader, channels: int) -> _Pixels:
        pixels: _Pixels = decode_png(data, header, channels, room=self._scratch)
        # OpenCV copies them to an array; 16 bits are held, briefly twice, beside their 8.
        own = pixels.nbytes * (5 if header.bits == 16 else 2)
        self._temporary = max(self._temporary, own + INFLATER_BYTES)
        return pixels

    def _resize(self, pixels: _Pixels, out: _Pixels) -> None:
        if self._filter != "bilinear":
            source, target = pixels.shape[:2], out.shape[:2]
            room = workspace_bytes(source, target, out.shape[2], self._filter)
            own = 0 if np.may_share_memory(pixels, self._buffer) else pixels.nbytes
            self._temporary = max(self._temporary, room + own)
        started = perf_counter()
        resize_into(pixels, out, self._filter)
        self.resize_s += perf_counter() - started

    def _scratch(self, size: int) -> _Pixels:
        """The first bytes of the buffer, which grows to the largest image seen."""
        if self._buffer.size < size:
            self._buffer = np.empty(0, np.uint8)  # free the old one before allocating the new
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]


def _header_within(data: Encoded, max_pixels: int) -> ImageHeader:
    header = read_header(data)
    if header.height * header.width > max_pixels:
        raise ImageError(
            f"{header.encoding.upper()} header claims {header.height} x {header.width} pixels, "
            f"over the limit of {max_pixels:,}",
            remedy="If the image is meant to be that large, raise max_pixels.",
        )
    return header


def _check_out(out: _Pixels) -> None:
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
