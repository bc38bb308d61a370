"""Encoded image in, pixels out: to the bit what `tfds.features.Image` gives through TensorFlow.

What the image is decoded to, by channels asked for (none: as stored):

| stored                          | none | 1 | 2 | 3 | 4 |
|---------------------------------|------|---|---|---|---|
| JPEG grey, colour               | =    | = | - | = | - |
| JPEG CMYK                       | = 3  | - | - | = | - |
| PNG grey, 1 to 16 bits          | =    | = | x | = | = |
| PNG grey with transparent value | =    | = | x | = | x |
| PNG grey and alpha              | =    | = | + | = | = |
| PNG RGB, palette (with alpha)   | =    | = | x | = | = |
| the same with gamma or profile  | =    | x | x | = | = |

`=` equal to `tf.image.decode_image(data, channels, dtype)`; `-` TensorFlow refuses, and so do we;
`+` TensorFlow refuses when asked for 2, and the pixels are those it gives when not asked; `x` an
`ImageError`, because the pixels would be others (or, for 2, there are none to compare with). The
table holds for `uint8` and `uint16`; JPEG to `uint16` is `* 256`. `float32` is what TFDS stores as
an RGBA PNG of four bytes a pixel: [H, W, 1].

Stricter than TensorFlow: a JPEG with flipped bits that libjpeg notices, which TensorFlow decodes
to other pixels with a warning, is an `ImageError`; so are arithmetic coding, odd chroma
subsampling, more than 100 progressive scans, a misplaced palette or transparency chunk and a
wrong CRC of any PNG chunk. Laxer in one thing that only hand-made data have: see `png_stored`. GIF
and BMP are not supported.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from headrace.decoding.header import Encoded, ImageHeader, read_header
from headrace.decoding.jpeg import decode_jpeg
from headrace.decoding.png import decode_png
from headrace.errors import ImageError, UsageError

__all__ = ["MAX_PIXELS", "PixelType", "decode_image", "decode_into"]

PixelType: TypeAlias = Literal["uint8", "uint16", "float32"]
_PIXEL_TYPES = {np.dtype(name): name for name in get_args(PixelType)}

#: 8192 x 8192: far above any camera, and its 192 MiB of RGB are still no danger. Not measured.
MAX_PIXELS = 1 << 26


def decode_image(
    data: Encoded,
    *,
    channels: int | None = None,
    dtype: PixelType = "uint8",
    max_pixels: int = MAX_PIXELS,
) -> npt.NDArray[Any]:
    """The pixels [H, W, C] of a JPEG or PNG; `channels=None` keeps those it is stored with.

    The size is checked against `max_pixels` before memory is taken.

    >>> import cv2
    >>> encoded = cv2.imencode(".png", np.zeros((4, 6), np.uint16))[1].tobytes()
    >>> decode_image(encoded, channels=1, dtype="uint16").shape
    (4, 6, 1)
    """
    _check_request(channels, dtype)
    header = _header_within(data, max_pixels)
    return _pixels(data, header, channels, dtype)


def decode_into(data: Encoded, out: npt.NDArray[Any], *, max_pixels: int = MAX_PIXELS) -> None:
    """Decodes into the caller's [H, W, C] array, whose channels and dtype say what to decode to.

    A JPEG goes straight into C-contiguous memory. After an error the contents of `out` are
    undefined.

    >>> import cv2
    >>> encoded = cv2.imencode(".jpg", np.full((4, 6), 200, np.uint8))[1].tobytes()
    >>> frames = np.empty((2, 4, 6, 3), np.uint8)
    >>> decode_into(encoded, frames[1])
    >>> int(frames[1].min())
    200
    """
    if out.ndim != 3 or not out.flags.writeable:
        raise UsageError(
            f"cannot decode into an array of shape {out.shape}, writeable={out.flags.writeable}",
            remedy="Give a writeable array [height, width, channels].",
        )
    dtype: Any = _PIXEL_TYPES.get(out.dtype, out.dtype.str)
    channels = out.shape[2] or -1  # 0 would mean: as stored
    _check_request(channels, dtype)
    header = _header_within(data, max_pixels)
    if out.shape[:2] != (header.height, header.width):
        raise ImageError(
            f"image of {header.height} x {header.width} does not fit its place of "
            f"{out.shape[0]} x {out.shape[1]}",
            remedy="Images of different sizes must be resized.",
        )
    if header.encoding == "jpeg" and dtype == "uint8" and out.flags.c_contiguous:
        decode_jpeg(data, header, channels, out)
    else:
        out[...] = _pixels(data, header, channels, dtype)


def _check_request(channels: int | None, dtype: PixelType) -> None:
    if dtype not in _PIXEL_TYPES.values():
        raise UsageError(
            f"images cannot be decoded to {dtype!r}", remedy="Use uint8, uint16 or float32."
        )
    if channels not in (None, 0, 1, 2, 3, 4) or (dtype == "float32" and (channels or 1) != 1):
        raise UsageError(
            f"images cannot be decoded to {channels} channels of {dtype}",
            remedy="Use 1, 3 or 4 of uint8 or uint16, or 1 of float32.",
        )


def _pixels(
    data: Encoded, header: ImageHeader, channels: int | None, dtype: PixelType
) -> npt.NDArray[Any]:
    if header.encoding == "jpeg":
        if dtype == "float32":
            raise ImageError("a JPEG cannot hold float32 pixels", remedy="Decode it to uint8.")
        pixels = decode_jpeg(data, header, channels)
        return pixels if dtype == "uint8" else pixels * np.uint16(256)
    if dtype == "float32":
        return decode_png(data, header, 4).view(np.float32)
    return decode_png(data, header, channels, bits=8 if dtype == "uint8" else 16)


def _header_within(data: Encoded, max_pixels: int) -> ImageHeader:
    header = read_header(data)
    if header.height * header.width > max_pixels:
        raise ImageError(
            f"{header.encoding.upper()} header claims {header.height} x {header.width} pixels, "
            f"over the limit of {max_pixels:,}",
            remedy="If the image is meant to be that large, raise max_pixels.",
        )
    return header
