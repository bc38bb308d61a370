"""PNG by libpng (OpenCV), set up to convert as TensorFlow does, with the pixels inflated by ISA-L.

OpenCV's libpng prints what it objects to on stderr and obeys chunks that TensorFlow ignores
(animation, orientation). So it is given only what passes `clean_png`: IHDR, PLTE, tRNS, IDAT and
IEND, in their right places and with right CRCs.

Most of libpng's time is zlib's inflate, and ISA-L takes 40% of that. So `store_pixels` inflates
first and hands libpng a PNG that holds the same data uncompressed ("stored"), which it only copies;
filters and conversions stay with libpng. `CleanPng.plain` is the twin that libpng inflates itself.
It is used for:

- interlaced PNGs: seven small images, and no camera writes them;
- streams that declare a window under 32 KiB, as libpng writes for images that small: it refuses
  those that then reach back further, ISA-L does not;
- streams with more data than the image: libpng decides what is valid after its end;
- everything on platforms without a wheel of `isal`.

In one respect ISA-L is less strict than zlib: a Huffman code for distances may be incomplete as
long as the data does not use what is missing. The checksum still proves that the pixels are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeAlias, cast

import cv2
import numpy as np
import numpy.typing as npt

from headrace.decoding.header import Encoded, ImageHeader
from headrace.errors import ImageError

try:
    from isal import igzip_lib, isal_zlib
    from isal.isal_zlib import crc32  # ten times as fast as zlib's
except ImportError:
    from zlib import crc32

    HAS_ISAL = False
else:
    HAS_ISAL = True
    _ISAL_ERROR = cast(type[Exception], igzip_lib.error)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Room: TypeAlias = Callable[[int], Bytes]  #: gives contiguous memory of a size, for one image
_Chunks: TypeAlias = list[tuple[bytes, int, int]]  # kind, position, length of the data

#: ISA-L's state and its output buffer, at most.
INFLATER_BYTES = 256 << 10

_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6  # colour types of the standard
_SAMPLES = {_GREY: 1, _RGB: 3, _PALETTE: 1, _GREY_ALPHA: 2, _RGB_ALPHA: 4}
_TONE = frozenset([b"gAMA", b"sRGB", b"iCCP", b"cICP", b"cHRM", b"mDCV"])
_IEND = b"\0\0\0\0IEND\xaeB`\x82"  # the last chunk, always the same
_COLOUR_AT = 25
_FIRST_CHUNK_AT = 33
_CHUNK = Struct(">I4s")
_CRC = Struct(">I")
_DEFLATE_RATIO = 1032  # the most that deflate can expand
_RESTORE = "Restore the file that contains it."

_AS_STORED = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
_TO_GREY = cv2.IMREAD_GRAYSCALE | _AS_STORED
_TO_RGB = cv2.IMREAD_COLOR_RGB | _AS_STORED
_TO_BGRA = cv2.IMREAD_UNCHANGED  # gives alpha where the PNG has any, grey ones included


def new_room(size: int) -> Bytes:
    """Memory for one image, not kept."""
    return np.empty(size, np.uint8)


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

    `room` gives the memory for the inflated data. `stored=False` leaves inflating to libpng: the
    same pixels, in more time. libpng prints a line to stderr for what it refuses: a filter that
    does not exist, and wrong data (under right CRCs) where it inflates.

    >>> encoded = cv2.imencode(".png", np.zeros((2, 3, 3), np.uint8))[1].tobytes()
    >>> decode_png(encoded, ImageHeader("png", 2, 3, 3, 8), channels=1).shape
    (2, 3, 1)
    """
    png = clean_png(data, header)
    if not channels:
        channels = 4 if png.colour == _PALETTE and png.transparent else header.channels
    _refuse_differing_pixels(png, channels)
    given = store_pixels(png, header, room) if stored else png.plain()
    if channels == 1:
        return _to_depth(_libpng(given, _TO_GREY, header), bits)
    if channels == 3:
        return _to_depth(_libpng(given, _TO_RGB, header), bits)
    if channels == 2:
        return _to_depth(_libpng(given, _TO_BGRA, header)[..., 2:], bits)
    if png.transparent or png.colour in (_GREY_ALPHA, _RGB_ALPHA):
        bgra = _libpng(given, _TO_BGRA, header)
        return _to_depth(cv2.cvtColor(bgra, cv2.COLOR_BGRA2RGBA), bits)
    rgb = _to_depth(_libpng(given, _TO_RGB, header), bits)
    # In TensorFlow "opaque" is the highest value of the stored depth: 15 for 4 bits.
    opaque = (1 << min(header.bits, bits)) - 1
    if bits == 16 and header.bits < 16:
        opaque *= 257
    return np.dstack([rgb, np.full(rgb.shape[:2], opaque, rgb.dtype)])


def _refuse_differing_pixels(png: CleanPng, channels: int) -> None:
    """Conversions that would not give TensorFlow's pixels."""
    colourful = png.colour not in (_GREY, _GREY_ALPHA)
    if channels == 1 and colourful and png.toned:
        what = "a colour PNG with gamma or profile"
    elif channels == 2 and png.colour != _GREY_ALPHA:
        what = "a PNG that is not stored as grey and alpha"
    elif channels == 4 and png.colour == _GREY and png.transparent:
        what = "a grey PNG with a transparent value"
    else:
        return
    raise ImageError(
        f"{what} cannot be decoded to {channels} channels with the pixels TensorFlow gives",
        remedy="Request 3 channels or those it is stored with.",
    )


def _libpng(data: Encoded | Bytes, flags: int, header: ImageHeader) -> npt.NDArray[Any]:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"OpenCV refuses the PNG: {error}") from None
    if pixels is None:
        raise _damaged()
    if pixels.shape[:2] != (header.height, header.width):
        raise ImageError(f"PNG decodes to {pixels.shape} but its header says {header}")
    array: npt.NDArray[Any] = pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
    return array


def _to_depth(pixels: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    if pixels.dtype == np.uint16 and bits == 8:
        return (pixels >> 8).astype(np.uint8)
    if pixels.dtype == np.uint8 and bits == 16:
        return pixels * np.uint16(257)
    return np.ascontiguousarray(pixels)


def _damaged(reason: str = "") -> ImageError:
    return ImageError(
        "damaged PNG: its compressed data does not give the image" + (reason and f" ({reason})"),
        remedy=_RESTORE,
    )


# Chunks: checked, and stripped of those that do not concern the pixels.


@dataclass(frozen=True, slots=True)
class CleanPng:
    """A PNG in which only the compressed data can still be wrong."""

    source: Encoded  #: as it was given
    stripped: bool  #: whether `source` has chunks that do not concern the pixels
    head: tuple[memoryview, ...]  #: signature, IHDR, and PLTE and tRNS where they count
    packed: tuple[memoryview, ...]  #: the compressed pixels: the contents of each IDAT chunk
    row_bytes: int  #: inflated bytes a row of pixels, including its filter byte
    colour: int  #: colour type
    transparent: bool  #: whether a tRNS chunk says which values or entries are transparent
    toned: bool  #: whether gamma, profile or the like say how its values relate to light

    def plain(self) -> Encoded:
        """The PNG with its pixels still compressed, for libpng to inflate."""
        if not self.stripped:
            return self.source
        parts: list[Encoded] = list(self.head)
        for data in self.packed:
            crc = crc32(data, crc32(b"IDAT"))
            parts += (_CHUNK.pack(len(data), b"IDAT"), data, _CRC.pack(crc))
        return b"".join([*parts, _IEND])


def clean_png(data: Encoded, header: ImageHeader) -> CleanPng:
    """Check the chunks and leave out those that do not concern the pixels.

    >>> encoded = cv2.imencode(".png", np.zeros((2, 3, 3), "uint8"))[1].tobytes()
    >>> clean_png(encoded, ImageHeader("png", 2, 3, 3, 8)).colour
    2
    """
    view = memoryview(data)
    colour = view[_COLOUR_AT]
    if len(view) < _FIRST_CHUNK_AT or not _crc_is_right(view, 8, 13):
        raise ImageError("damaged PNG: the CRC of its IHDR chunk is wrong", remedy=_RESTORE)
    chunks = list(_chunks(view))
    kinds = [kind for kind, _, _ in chunks]
    wanted = {b"IDAT", b"IEND", b"tRNS", b"PLTE"}
    for kind, at, length in chunks:
        if not _crc_is_right(view, at, length):
            raise ImageError(
                f"damaged PNG: the CRC of its {_name(kind)} chunk at byte {at} is wrong",
                remedy=_RESTORE,
            )
        if kind not in wanted and not kind[0] & 0x20:
            raise ImageError(f"PNG has an unknown critical chunk {_name(kind)} at byte {at}")
    row = -(-header.width * header.bits * _SAMPLES[colour] // 8) + 1
    _check_pixel_chunks(chunks, kinds, header, row)
    palette = _check_palette(chunks, kinds, colour)
    transparent = _check_transparency(chunks, kinds, header, colour, palette)
    if colour in (_GREY, _GREY_ALPHA):
        wanted.discard(b"PLTE")  # allowed, and ignored by all decoders
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
    """Each chunk after IHDR, up to IEND."""
    at, end = _FIRST_CHUNK_AT, len(view)
    kind = b""
    while kind != b"IEND":
        if at + 12 > end:
            raise ImageError(f"PNG ends after {end} bytes, without an IEND chunk", remedy=_RESTORE)
        length, kind = _CHUNK.unpack_from(view, at)
        if at + 12 + length > end or not kind.isalpha():
            raise ImageError(
                f"damaged PNG: chunk {_name(kind)} of {length} bytes at byte {at} of {end}",
                remedy=_RESTORE,
            )
        yield kind, at, length
        at += 12 + length


def _check_pixel_chunks(chunks: _Chunks, kinds: list[bytes], header: ImageHeader, row: int) -> None:
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


def _check_palette(chunks: _Chunks, kinds: list[bytes], colour: int) -> int:
    """The number of colours of the palette."""
    if b"PLTE" not in kinds:
        if colour == _PALETTE:
            raise ImageError("PNG with a palette has no PLTE chunk")
        return 0
    index = kinds.index(b"PLTE")
    _, at, length = chunks[index]
    late = index > kinds.index(b"IDAT")
    if late or kinds.count(b"PLTE") > 1 or length % 3 or not 3 <= length <= 768:
        raise ImageError(f"PNG has a misplaced or malformed PLTE of {length} bytes at byte {at}")
    return length // 3


def _check_transparency(
    chunks: _Chunks, kinds: list[bytes], header: ImageHeader, colour: int, palette: int
) -> bool:
    if b"tRNS" not in kinds:
        return False
    index = kinds.index(b"tRNS")
    _, at, length = chunks[index]
    late = index > kinds.index(b"IDAT")
    early = colour == _PALETTE and index < kinds.index(b"PLTE")
    entries = min(palette, 1 << header.bits)
    fits = {_GREY: length == 2, _RGB: length == 6, _PALETTE: 1 <= length <= entries}
    if late or early or kinds.count(b"tRNS") > 1 or not fits.get(colour, False):
        raise ImageError(f"PNG has a misplaced or malformed tRNS of {length} bytes at byte {at}")
    return True


def _crc_is_right(view: memoryview, at: int, length: int) -> bool:
    body = at + 8 + length
    return bool(crc32(view[at + 4 : body]) == _CRC.unpack_from(view, body)[0])


def _name(kind: bytes) -> str:
    return kind.decode("ascii") if kind.isalpha() else f"0x{kind.hex()}"


# The same PNG with its pixels stored uncompressed, inflated by ISA-L.

_DEFLATE_WITH_32_KIB = 0x78  # first byte of a zlib stream
_BLOCK_BYTES = 65535  # the most that deflate can store in one block
_FEED_BYTES = 32 << 10  # 4% faster than 8 KiB, and not slower than all at once
_BLOCK = Struct("<BHH")  # last?, length, its complement
_IDAT = Struct(">I4sH")  # length, name, and the two bytes that a zlib stream begins with
_CHECKSUMS = Struct(">II")
_HEAD_BYTES = 33 + (12 + 768) + (12 + 256)  # at most: up to IHDR, PLTE, tRNS
_AROUND_BYTES = _IDAT.size + _CHECKSUMS.size + len(_IEND)


def store_pixels(png: CleanPng, header: ImageHeader, room: Room) -> Encoded | Bytes:
    """The same PNG with its pixels stored, in memory from `room`; or `plain` if left to libpng.

    No more is inflated than the image. Compressed data that ends early, is not a deflate stream or
    fails its checksum is an `ImageError`.

    >>> encoded = cv2.imencode(".png", np.zeros((200, 300, 3), np.uint8))[1].tobytes()
    >>> header = ImageHeader("png", 200, 300, 3, 8)
    >>> stored = store_pixels(clean_png(encoded, header), header, new_room)
    >>> HAS_ISAL == (len(stored) > 200 * 300 * 3)
    True
    """
    if not HAS_ISAL or header.progressive or _first_byte(png) != _DEFLATE_WITH_32_KIB:
        return png.plain()
    start = sum(map(len, png.head))
    size = header.height * png.row_bytes
    body = _IDAT.size + _blocks_bytes(size)
    out = room(start + body + _CHECKSUMS.size + len(_IEND))
    view = out.data
    adler = _inflate(png.packed, size, view[start + _IDAT.size :])
    if adler is None:
        return png.plain()
    at = 0
    for part in png.head:
        view[at : at + len(part)] = part
        at += len(part)
    _IDAT.pack_into(view, start, body - 4, b"IDAT", 0x7801)
    end = start + body
    _CHECKSUMS.pack_into(view, end, adler, 0)
    crc = isal_zlib.crc32(view[start + 4 : end + 4])
    _CHECKSUMS.pack_into(view, end, adler, crc)
    view[end + _CHECKSUMS.size :] = _IEND
    return out


def stored_bytes(header: ImageHeader) -> int:
    """The most that `store_pixels` requests of `room`, from what the header says."""
    rows = header.height * (-(-header.width * header.bits * header.channels // 8) + 1)
    return _HEAD_BYTES + _AROUND_BYTES + _blocks_bytes(rows)


def _blocks_bytes(size: int) -> int:
    return size + -(-size // _BLOCK_BYTES) * _BLOCK.size


def _first_byte(png: CleanPng) -> int:
    return next(part[0] for part in png.packed if part)


def _inflate(packed: tuple[memoryview, ...], size: int, out: memoryview) -> int | None:
    """Fill `out` with stored blocks; the checksum, or None if the stream has more than `size`.

    It goes piece by piece: memory for the whole image, allocated for each one, can cost more than
    it saves (in a thread, malloc returns it to the system every time).
    """
    inflater = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_ZLIB)
    at, left, block = 0, size, 0  # place in `out`, bytes left in the image and in this block
    for part in _portions(packed):
        fed: Encoded = part
        while not inflater.eof:
            if not block and left:
                block = min(left, _BLOCK_BYTES)
                _BLOCK.pack_into(out, at, block == left, block, block ^ 0xFFFF)
                at += _BLOCK.size
            # After the image, one more byte would show that the stream continues.
            limit = block or 1
            try:
                piece = inflater.decompress(fed, limit)
            except _ISAL_ERROR as error:
                raise _damaged(str(error)) from None
            if piece and not left:
                return None
            out[at : at + len(piece)] = piece
            at += len(piece)
            left -= len(piece)
            block -= len(piece)
            if len(piece) < limit:
                break  # `needs_input` does not tell: it is set while output is held back
            fed = b""
    if left or not inflater.eof:
        raise _damaged(f"it ends after {size - left:,} of {size:,} bytes, or in the checksum")
    return inflater.crc


def _portions(packed: tuple[memoryview, ...]) -> Iterator[memoryview]:
    for part in packed:
        for at in range(0, len(part), _FEED_BYTES):
            yield part[at : at + _FEED_BYTES]
