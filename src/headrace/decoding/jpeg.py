"""JPEG by libjpeg-turbo (simplejpeg), set up as TensorFlow sets it up.

TensorFlow's default DCT is libjpeg's fast integer one with smooth ("fancy") chroma upsampling:
`fastdct=True, fastupsample=False` gives the same pixels bit for bit, the accurate DCT does not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg

from headrace.decoding.header import (
    JPEG_SIGNATURE,
    MAX_PIXELS,
    SOF_MARKERS,
    Encoded,
    ImageHeader,
    jpeg_segments,
)
from headrace.errors import ImageError

#: Encoders write about ten. Each scan of a progressive JPEG may visit every pixel at the cost of a
#: few bytes, so without a limit a small file could keep a thread busy for hours.
MAX_SCANS = 100

_SPACES = {1: "GRAY", 3: "RGB"}
_BASELINE, _ADOBE = 0xC0, 0xEE  # markers


def decode_jpeg(
    data: Encoded,
    header: ImageHeader,
    channels: int | None = None,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """The pixels [H, W, C], in `out` if given (C-contiguous and of that shape).

    What libjpeg only warns about (flipped bits, missing data, surplus bytes) is an `ImageError`.

    >>> encoded = simplejpeg.encode_jpeg(np.zeros((2, 3, 3), np.uint8))
    >>> decode_jpeg(encoded, ImageHeader("jpeg", 2, 3, 3, 8)).shape
    (2, 3, 3)
    """
    channels = channels or min(header.channels, 3)
    if channels not in _SPACES or (channels == 1 and header.channels == 4):
        raise ImageError(
            f"a JPEG of {header.channels} channels cannot be decoded to {channels}",
            remedy="Request 3 channels.",
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
            f"damaged JPEG of {len(data)} bytes: {error}",
            remedy="Restore the file that contains it.",
        ) from None


def _refuse_bombs(data: Encoded, header: ImageHeader) -> None:
    """Reject a size that these bytes cannot hold, and an excessive number of scans."""
    if _blocks(header.height, header.width) > 8 * len(data):
        raise ImageError(
            f"JPEG header claims {header.height} x {header.width} pixels in {len(data)} bytes"
        )
    if header.progressive:
        scans = bytes(data).count(b"\xff\xda")
        if scans > MAX_SCANS:
            raise ImageError(f"JPEG of {scans} scans is over the limit of {MAX_SCANS}")


def _blocks(height: int, width: int) -> int:
    """Blocks of 8 x 8 pixels. None takes less than a bit."""
    return -(-height // 8) * -(-width // 8)


def _has_adobe_marker(data: Encoded) -> bool:
    return any(
        marker == _ADOBE and stop - start >= 12 and bytes(data[start : start + 5]) == b"Adobe"
        for marker, start, stop in jpeg_segments(data)
    )


def _rgb_from_cmyk(cmyk: npt.NDArray[np.uint8], *, inverted: bool) -> npt.NDArray[np.uint8]:
    """As TensorFlow converts: multiplied by black. Adobe stores all four inverted."""
    inks = cmyk.astype(np.uint16)
    if not inverted:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


def is_plain_jpeg(data: Encoded) -> bool:
    """Whether a device may decode this: a complete baseline JPEG of luma and chroma.

    Decoders agree on those. On what is rare (progressive, grey, CMYK, Adobe's colour transforms,
    missing bytes) they differ, in their pixels or in what they refuse, so such images are decoded
    by `FrameDecoder`.

    >>> is_plain_jpeg(b"GIF89a")
    False
    """
    if bytes(data[:3]) != JPEG_SIGNATURE or bytes(data[-2:]) != b"\xff\xd9":
        return False
    try:
        for marker, start, stop in jpeg_segments(data):
            if marker == _ADOBE:
                return False
            if marker == _BASELINE:
                return stop - start >= 6 and _is_plausible(bytes(data[start : start + 6]), data)
            if marker in SOF_MARKERS:
                return False
    except ImageError:
        pass
    return False


def _is_plausible(frame: bytes, data: Encoded) -> bool:
    """Of a frame header: 8 bits, three components, and a size that the data can hold."""
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return (
        frame[0] == 8
        and frame[5] == 3
        and 0 < height * width <= MAX_PIXELS
        and _blocks(height, width) <= 8 * len(data)
    )
