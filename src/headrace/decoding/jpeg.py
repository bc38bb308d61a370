"""JPEG by libjpeg-turbo (simplejpeg), set up as TensorFlow sets it up.

TensorFlow's default DCT is libjpeg's fast integer one with smooth ("fancy") chroma upsampling:
`fastdct=True, fastupsample=False` gives its pixels to the bit, the accurate DCT does not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg

from headrace.decoding.header import Encoded, ImageHeader, jpeg_segments
from headrace.errors import ImageError

__all__ = ["decode_jpeg"]

#: Encoders write about ten. Each scan of a progressive JPEG may visit every pixel at the cost of a
#: few bytes, so that without a limit a small file could keep a thread busy for hours.
MAX_SCANS = 100

_SPACES = {1: "GRAY", 3: "RGB"}


def decode_jpeg(
    data: Encoded,
    header: ImageHeader,
    channels: int | None = None,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """The pixels [H, W, C], in `out` if given (C-contiguous and of that shape).

    Whatever libjpeg only warns of (bits flipped, data missing, bytes too many) is an `ImageError`.

    >>> encoded = simplejpeg.encode_jpeg(np.zeros((2, 3, 3), np.uint8))
    >>> decode_jpeg(encoded, ImageHeader("jpeg", 2, 3, 3, 8)).shape
    (2, 3, 3)
    """
    channels = channels or min(header.channels, 3)
    if channels not in _SPACES or (channels == 1 and header.channels == 4):
        raise ImageError(
            f"a JPEG of {header.channels} channels cannot be decoded to {channels}",
            remedy="Ask for 3 channels.",
        )
    _refuse_bombs(data, header)
    if header.channels == 4:
        pixels = _rgb_from_cmyk(_decompress(data, "CMYK", None), inverted=_has_adobe_marker(data))
        if out is None:
            return pixels
        out[...] = pixels
        return out
    return _decompress(data, _SPACES[channels], out)


def _decompress(
    data: Encoded, space: str, out: npt.NDArray[np.uint8] | None
) -> npt.NDArray[np.uint8]:
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, colorspace=space, fastdct=True, buffer=out, strict=True
        )
        return pixels
    except ValueError as error:
        raise ImageError(
            f"damaged JPEG of {len(data)} bytes: {error}", remedy="Restore the file it came from."
        ) from None


def _refuse_bombs(data: Encoded, header: ImageHeader) -> None:
    """Sizes that so few bytes cannot hold, and scans without end."""
    blocks = -(-header.height // 8) * -(-header.width // 8)
    if len(data) * 8 < blocks:  # no block of 8 x 8 takes less than a bit
        raise ImageError(
            f"JPEG header claims {header.height} x {header.width} pixels in {len(data)} bytes"
        )
    if header.progressive:
        scans = bytes(data).count(b"\xff\xda")
        if scans > MAX_SCANS:
            raise ImageError(f"JPEG of {scans} scans is over the limit of {MAX_SCANS}")


def _has_adobe_marker(data: Encoded) -> bool:
    return any(
        marker == 0xEE and stop - start >= 12 and bytes(data[start : start + 5]) == b"Adobe"
        for marker, start, stop in jpeg_segments(data)
    )


def _rgb_from_cmyk(cmyk: npt.NDArray[np.uint8], *, inverted: bool) -> npt.NDArray[np.uint8]:
    """As TensorFlow converts: by multiplying with black. Adobe stores all four inverted."""
    inks = cmyk.astype(np.uint16)
    if not inverted:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
