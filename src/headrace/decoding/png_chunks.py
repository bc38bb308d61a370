"""The chunks of a PNG, checked, and stripped of those that do not concern its pixels.

OpenCV's libpng reports what it dislikes to stderr and heeds chunks that TensorFlow does not
(animation, orientation). So it is given only what passes here: IHDR, PLTE, tRNS, IDAT, IEND, in
their right places and with right CRCs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from headrace.decoding.header import Encoded, ImageHeader
from headrace.errors import ImageError

try:
    from isal.isal_zlib import crc32  # ten times as fast
except ImportError:
    from zlib import crc32

__all__ = ["GREY", "GREY_ALPHA", "IEND", "PALETTE", "RGB", "RGB_ALPHA", "CleanPng", "clean_png"]

GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6  # colour types of the standard

IEND = b"\0\0\0\0IEND\xaeB`\x82"  #: the last chunk, always the same

_SAMPLES = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGB_ALPHA: 4}
_COLOUR_AT = 25
_FIRST_CHUNK_AT = 33
_CHUNK = Struct(">I4s")
_CRC = Struct(">I")
_DEFLATE_RATIO = 1032  # the most that deflate can expand
_TONE = frozenset([b"gAMA", b"sRGB", b"iCCP", b"cICP", b"cHRM", b"mDCV"])


@dataclass(frozen=True, slots=True)
class CleanPng:
    """A PNG in which nothing but its compressed data can still be wrong."""

    source: Encoded  #: as it was given
    stripped: bool  #: `source` has chunks that do not concern the pixels
    head: tuple[memoryview, ...]  #: signature, IHDR, and PLTE and tRNS where they count
    packed: tuple[memoryview, ...]  #: the compressed pixels: the contents of each IDAT chunk
    row_bytes: int  #: inflated bytes a row of pixels, with the one that names its filter
    colour: int  #: colour type
    transparent: bool  #: a tRNS chunk says which values or palette entries are transparent
    toned: bool  #: gamma, profile or the like say how its values relate to light

    def plain(self) -> Encoded:
        """The PNG with its pixels as they are compressed, for libpng to inflate."""
        if not self.stripped:
            return self.source
        parts: list[Encoded] = list(self.head)
        for data in self.packed:
            crc = crc32(data, crc32(b"IDAT"))
            parts += (_CHUNK.pack(len(data), b"IDAT"), data, _CRC.pack(crc))
        return b"".join([*parts, IEND])


def clean_png(data: Encoded, header: ImageHeader) -> CleanPng:
    """Checks the chunks and leaves out what does not concern the pixels.

    >>> import cv2, numpy
    >>> encoded = cv2.imencode(".png", numpy.zeros((2, 3, 3), "uint8"))[1].tobytes()
    >>> clean_png(encoded, ImageHeader("png", 2, 3, 3, 8)).colour == RGB
    True
    """
    view = memoryview(data)
    colour = view[_COLOUR_AT]
    if len(view) < _FIRST_CHUNK_AT or not _crc_is_right(view, 8, 13):
        raise ImageError("damaged PNG: the CRC of its IHDR chunk is wrong")
    chunks = list(_chunks(view))
    kinds = [kind for kind, _, _ in chunks]
    wanted = {b"IDAT", b"IEND", b"tRNS", b"PLTE"}
    for kind, at, length in chunks:
        if not _crc_is_right(view, at, length):
            raise ImageError(
                f"damaged PNG: the CRC of its {_name(kind)} chunk at byte {at} is wrong",
                remedy="Restore the file it came from.",
            )
        if kind not in wanted and not kind[0] & 0x20:
            raise ImageError(f"PNG has an unknown critical chunk {_name(kind)} at byte {at}")
    row = -(-header.width * header.bits * _SAMPLES[colour] // 8) + 1
    _check_pixel_chunks(chunks, kinds, header, row)
    palette = _check_palette(chunks, kinds, colour)
    transparent = _check_transparency(chunks, kinds, header, colour, palette)
    if colour in (GREY, GREY_ALPHA):
        wanted.discard(b"PLTE")  # allowed, and ignored by everyone
    head, packed = [view[:_FIRST_CHUNK_AT]], []
    for kind, at, length in chunks:
        if kind == b"IDAT":
            packed.append(view[at + 8 : at + 8 + length])
        elif kind in wanted and kind != b"IEND":
            head.append(view[at : at + 12 + length])
    stripped = not wanted.issuperset(kinds)
    toned = not _TONE.isdisjoint(kinds)
    return CleanPng(data, stripped, tuple(head), tuple(packed), row, colour, transparent, toned)


def _chunks(view: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """(kind, position, length of the data) of each chunk after IHDR, up to IEND."""
    at, end = _FIRST_CHUNK_AT, len(view)
    kind = b""
    while kind != b"IEND":
        if at + 12 > end:
            raise ImageError(f"PNG ends after {end} bytes, without an IEND chunk")
        length, kind = _CHUNK.unpack_from(view, at)
        if at + 12 + length > end or not kind.isalpha():
            raise ImageError(
                f"damaged PNG: chunk {_name(kind)} of {length} bytes at byte {at} of {end}"
            )
        yield kind, at, length
        at += 12 + length


def _check_pixel_chunks(
    chunks: list[tuple[bytes, int, int]], kinds: list[bytes], header: ImageHeader, row: int
) -> None:
    encoded = sum(length for kind, _, length in chunks if kind == b"IDAT")
    if not encoded:
        raise ImageError("PNG without pixels: it has no IDAT chunk")
    first, count = kinds.index(b"IDAT"), kinds.count(b"IDAT")
    if kinds[first : first + count].count(b"IDAT") < count:
        raise ImageError("PNG has other chunks between its IDAT chunks")
    if header.height * row > encoded * _DEFLATE_RATIO + 1024:
        raise ImageError(
            f"PNG header claims {header.height} x {header.width} pixels in {encoded} bytes"
        )


def _check_palette(chunks: list[tuple[bytes, int, int]], kinds: list[bytes], colour: int) -> int:
    """How many colours the palette has."""
    if b"PLTE" not in kinds:
        if colour == PALETTE:
            raise ImageError("PNG with a palette lacks its PLTE chunk")
        return 0
    index = kinds.index(b"PLTE")
    _, at, length = chunks[index]
    late = index > kinds.index(b"IDAT")
    if late or kinds.count(b"PLTE") > 1 or length % 3 or not 3 <= length <= 768:
        raise ImageError(f"PNG has a misplaced or misshapen PLTE of {length} bytes at byte {at}")
    return length // 3


def _check_transparency(
    chunks: list[tuple[bytes, int, int]],
    kinds: list[bytes],
    header: ImageHeader,
    colour: int,
    palette: int,
) -> bool:
    if b"tRNS" not in kinds:
        return False
    index = kinds.index(b"tRNS")
    _, at, length = chunks[index]
    late = index > kinds.index(b"IDAT")
    early = colour == PALETTE and index < kinds.index(b"PLTE")
    entries = min(palette, 1 << header.bits)
    fits = {GREY: length == 2, RGB: length == 6, PALETTE: 1 <= length <= entries}
    if late or early or kinds.count(b"tRNS") > 1 or not fits.get(colour, False):
        raise ImageError(f"PNG has a misplaced or misshapen tRNS of {length} bytes at byte {at}")
    return True


def _crc_is_right(view: memoryview, at: int, length: int) -> bool:
    body = at + 8 + length
    return bool(crc32(view[at + 4 : body]) == _CRC.unpack_from(view, body)[0])


def _name(kind: bytes) -> str:
    return kind.decode("ascii") if kind.isalpha() else f"0x{kind.hex()}"
