"""PNG by libpng (OpenCV), which in OpenCV and in TensorFlow is told to convert in the same ways.

Its pixels are inflated before, by a faster library: see `png_stored`.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from headrace.decoding.header import Encoded, ImageHeader
from headrace.decoding.png_chunks import GREY, GREY_ALPHA, PALETTE, RGB_ALPHA, CleanPng, clean_png
from headrace.decoding.png_stored import Bytes, Room, new_room, store_pixels
from headrace.errors import ImageError

__all__ = ["decode_png"]

_AS_STORED = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
_TO_GREY = cv2.IMREAD_GRAYSCALE | _AS_STORED
_TO_RGB = cv2.IMREAD_COLOR_RGB | _AS_STORED
_TO_BGRA = cv2.IMREAD_UNCHANGED  # gives alpha where the PNG has any, grey ones included


def decode_png(
    data: Encoded,
    header: ImageHeader,
    channels: int | None = None,
    *,
    bits: int = 8,
    stored: bool = True,
    room: Room = new_room,
) -> npt.NDArray[Any]:
    """The pixels [H, W, C] in 8 or 16 bits: 16 to 8 drops the lower byte, 8 to 16 repeats it.

    `room` gives the memory that the inflated data pass through. `stored=False` leaves inflating to
    libpng: the same pixels, in more time. libpng prints a line to stderr for what it refuses: a
    filter that does not exist, and wrong data (under right CRCs) where it inflates.

    >>> encoded = cv2.imencode(".png", np.zeros((2, 3, 3), np.uint8))[1].tobytes()
    >>> decode_png(encoded, ImageHeader("png", 2, 3, 3, 8), channels=1).shape
    (2, 3, 1)
    """
    png = clean_png(data, header)
    if not channels:
        channels = 4 if png.colour == PALETTE and png.transparent else header.channels
    _refuse_other_pixels(png, channels)
    given = store_pixels(png, header, room) if stored else png.plain()
    if channels == 1:
        return _to_depth(_libpng(given, _TO_GREY, header), bits)
    if channels == 3:
        return _to_depth(_libpng(given, _TO_RGB, header), bits)
    if channels == 2:
        return _to_depth(_libpng(given, _TO_BGRA, header)[..., 2:], bits)
    if png.transparent or png.colour in (GREY_ALPHA, RGB_ALPHA):
        bgra = _libpng(given, _TO_BGRA, header)
        return _to_depth(cv2.cvtColor(bgra, cv2.COLOR_BGRA2RGBA), bits)
    rgb = _to_depth(_libpng(given, _TO_RGB, header), bits)
    # As TensorFlow has it, "opaque" is the highest value of the stored depth: 15 for 4 bits.
    opaque = (1 << min(header.bits, bits)) - 1
    if bits == 16 and header.bits < 16:
        opaque *= 257
    return np.dstack([rgb, np.full(rgb.shape[:2], opaque, rgb.dtype)])


def _refuse_other_pixels(png: CleanPng, channels: int) -> None:
    """Conversions in which the pixels would be other than TensorFlow's."""
    colourful = png.colour not in (GREY, GREY_ALPHA)
    if channels == 1 and colourful and png.toned:
        what = "a colour PNG with gamma or profile"
    elif channels == 2 and png.colour != GREY_ALPHA:
        what = "a PNG that is not stored as grey and alpha"
    elif channels == 4 and png.colour == GREY and png.transparent:
        what = "a grey PNG with a transparent value"
    else:
        return
    raise ImageError(
        f"{what} cannot be decoded to {channels} channels with the pixels TensorFlow gives",
        remedy="Ask for 3 channels or for those it is stored with.",
    )


def _libpng(data: Encoded | Bytes, flags: int, header: ImageHeader) -> npt.NDArray[Any]:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"OpenCV refuses the PNG: {error}") from None
    if pixels is None:
        raise ImageError(
            "damaged PNG: its compressed data do not give the image",
            remedy="Restore the file it came from.",
        )
    if pixels.shape[:2] != (header.height, header.width):
        raise ImageError(f"PNG decodes to {pixels.shape} where its header says {header}")
    array: npt.NDArray[Any] = pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
    return array


def _to_depth(pixels: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    if pixels.dtype == np.uint16 and bits == 8:
        return (pixels >> 8).astype(np.uint8)
    if pixels.dtype == np.uint8 and bits == 16:
        return pixels * np.uint16(257)
    return np.ascontiguousarray(pixels)
