"""Size and kind of an encoded image, read from its first bytes without decoding anything.

Every access is checked against the end of the buffer, which may hold only the beginning of the
image: 33 bytes of a PNG are enough, and of a JPEG all up to its frame header (after its metadata).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Literal, TypeAlias

from headrace.errors import ImageError

Encoding: TypeAlias = Literal["jpeg", "png"]
Encoded: TypeAlias = bytes | bytearray | memoryview

#: 8192 x 8192: far above any camera, and its 192 MiB of RGB are still harmless. Not measured.
MAX_PIXELS = 1 << 26

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_SIGNATURE = b"\xff\xd8\xff"

#: The PNG standard's colour types, each with its channels and permitted bit depths.
_PNG_COLOURS = {
    0: (1, (1, 2, 4, 8, 16)),  # grey
    2: (3, (8, 16)),  # RGB
    3: (3, (1, 2, 4, 8)),  # palette
    4: (2, (8, 16)),  # grey and alpha
    6: (4, (8, 16)),  # RGB and alpha
}
_PNG_MAX_SIDE = 1_000_000  # libpng's own limit, in TensorFlow and in OpenCV
_IHDR = Struct(">I4sIIBBBBB")
_SOF = Struct(">BHHB")

SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  #: start of frame
_DECODABLE_SOF = {0xC0, 0xC1, 0xC2}  # baseline, extended sequential, progressive; Huffman coded
_STANDALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
_SOS, _EOI, _SOI = 0xDA, 0xD9, 0xD8

_FOREIGN = (
    ("GIF", 0, b"GIF8"),
    ("BMP", 0, b"BM"),
    ("WebP", 8, b"WEBP"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("JPEG 2000", 4, b"jP  "),
)


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Size and kind of an encoded image."""

    encoding: Encoding  #: from its signature, not from the schema
    height: int  #: rows of pixels
    width: int  #: pixels a row
    channels: int  #: as stored; 3 for a palette, 4 for a CMYK JPEG
    bits: int  #: per channel; of the index for a palette
    progressive: bool = False  #: a progressive JPEG or an interlaced PNG


def read_header(data: Encoded) -> ImageHeader:
    """Size and kind of a JPEG or PNG; `ImageError` for anything else.

    >>> read_header(
    ...     b"\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\x02\\0\\0\\0\\x03\\x08\\x02\\0\\0\\0"
    ... )
    ImageHeader(encoding='png', height=3, width=2, channels=3, bits=8, progressive=False)
    """
    head = bytes(data[:12])
    if head.startswith(JPEG_SIGNATURE):
        return _jpeg_header(data)
    if head.startswith(PNG_SIGNATURE):
        return _png_header(data)
    for name, at, magic in _FOREIGN:
        if head.startswith(magic, at):
            raise ImageError(
                f"{name} images are not supported", remedy="Store the images as JPEG or PNG."
            )
    raise ImageError(
        f"neither JPEG nor PNG: {len(data)} bytes that begin with {head.hex(' ') or 'nothing'}",
        remedy="Check that the field holds encoded images.",
    )


def _png_header(data: Encoded) -> ImageHeader:
    if len(data) < 8 + _IHDR.size:
        raise ImageError(f"PNG ends inside its header, after {len(data)} bytes")
    length, kind, width, height, bits, colour, compression, filters, interlace = _IHDR.unpack_from(
        data, 8
    )
    if length != 13 or kind != b"IHDR":
        raise ImageError("PNG does not begin with an IHDR chunk of 13 bytes")
    if not (0 < width <= _PNG_MAX_SIDE and 0 < height <= _PNG_MAX_SIDE):
        raise ImageError(f"PNG header claims an impossible size of {height} x {width}")
    if colour not in _PNG_COLOURS or bits not in _PNG_COLOURS[colour][1]:
        raise ImageError(f"PNG header claims colour type {colour} with {bits} bits")
    if compression or filters or interlace > 1:
        raise ImageError(
            f"PNG header claims compression {compression}, filter {filters}, interlace {interlace}"
        )
    return ImageHeader("png", height, width, _PNG_COLOURS[colour][0], bits, bool(interlace))


def _jpeg_header(data: Encoded) -> ImageHeader:
    for marker, start, stop in jpeg_segments(data):
        if marker not in SOF_MARKERS:
            continue
        if stop - start < _SOF.size:
            raise ImageError(f"JPEG frame header of {stop - start} bytes at byte {start}")
        bits, height, width, components = _SOF.unpack_from(data, start)
        if marker not in _DECODABLE_SOF or bits != 8:
            raise ImageError(
                f"JPEG process SOF{marker - 0xC0} with {bits} bits is not supported",
                remedy="Store the images as baseline or progressive JPEG of 8 bits.",
            )
        if not (height and width) or components not in (1, 3, 4):
            raise ImageError(
                f"JPEG header claims a size of {height} x {width} with {components} components"
            )
        return ImageHeader("jpeg", height, width, components, bits, marker == 0xC2)
    raise ImageError("JPEG without a frame header before its data")


def jpeg_segments(data: Encoded) -> Iterator[tuple[int, int, int]]:
    """(marker, start, stop) of the payload of each segment of a JPEG before its first scan."""
    at, end = 2, len(data)
    while True:
        if at < end and data[at] != 0xFF:
            raise ImageError(f"JPEG has byte {data[at]:#04x} instead of a marker at byte {at}")
        while at < end and data[at] == 0xFF:
            at += 1
        if at >= end:
            break
        marker, at = data[at], at + 1
        if marker in _STANDALONE:
            continue
        if marker in (_SOS, _EOI):
            return
        if marker in (0, _SOI):
            raise ImageError(f"JPEG has marker {marker:#04x} out of place at byte {at - 1}")
        length = int.from_bytes(data[at : at + 2], "big")
        if at + max(length, 2) > end:
            break
        if length < 2:
            raise ImageError(f"JPEG segment {marker:#04x} of length {length} at byte {at}")
        yield marker, at + 2, at + length
        at += length
    raise ImageError(f"JPEG ends inside its header, after {end} bytes")
