"""Which JPEGs a device may decode instead of us: those that leave it no choice of its own.

Decoders agree on whole baseline JPEGs of luma and chroma. On what is rare (progressive, grey, CMYK,
Adobe's colour transforms, bytes that are missing) they differ, in their pixels or in what they
refuse, so such images stay with `FrameDecoder`.
"""

from __future__ import annotations

from headrace.decoding.header import JPEG_SIGNATURE, Encoded, jpeg_segments
from headrace.decoding.image import MAX_PIXELS
from headrace.errors import ImageError

__all__ = ["is_plain_jpeg"]

_BASELINE, _ADOBE = 0xC0, 0xEE
_END = b"\xff\xd9"


def is_plain_jpeg(data: Encoded) -> bool:
    """Whether this is a whole baseline JPEG of three components and a size that can be true.

    >>> is_plain_jpeg(b"GIF89a")
    False
    """
    if bytes(data[:3]) != JPEG_SIGNATURE or bytes(data[-2:]) != _END:
        return False
    try:
        for marker, start, stop in jpeg_segments(data):
            if marker == _ADOBE:
                return False
            if marker == _BASELINE:
                return stop - start >= 6 and _has_pixels(bytes(data[start : start + 6]), len(data))
            if 0xC1 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                return False
    except ImageError:
        pass
    return False


def _has_pixels(frame: bytes, size: int) -> bool:
    """Of a frame header: 8 bits, three components, and pixels that so many bytes can hold."""
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    blocks = -(-height // 8) * -(-width // 8)  # none takes less than a bit
    return (
        frame[0] == 8 and frame[5] == 3 and 0 < height * width <= MAX_PIXELS and blocks <= 8 * size
    )
