"""A PNG whose pixels ISA-L has inflated and that holds them stored: libpng need only copy them.

Most of libpng's time is zlib's inflate; ISA-L's takes 40% of that. Everything else, filters and
conversions, stays with libpng. Left to libpng altogether, by its plain twin `CleanPng.plain`:

- interlaced PNGs: seven small images, and no camera writes them;
- streams that declare a window under 32 KiB, as libpng writes for images that small: it refuses
  those that then reach back further, ISA-L does not;
- streams with more data than the image: what is right after its end is libpng's to judge;
- everything where there is no wheel of `isal`.

In one thing ISA-L is laxer than zlib: a Huffman code for distances may be incomplete as long as the
data do not use what it lacks. The checksum vouches for the pixels all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from headrace.decoding.header import Encoded, ImageHeader
from headrace.decoding.png_chunks import IEND, CleanPng
from headrace.errors import ImageError

try:
    from isal import igzip_lib, isal_zlib
except ImportError:
    HAS_ISAL = False
else:
    HAS_ISAL = True
    _REFUSED = cast(type[Exception], igzip_lib.error)

__all__ = [
    "HAS_ISAL",
    "INFLATER_BYTES",
    "Bytes",
    "Room",
    "new_room",
    "store_pixels",
    "stored_bytes",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Room: TypeAlias = Callable[[int], Bytes]  #: gives contiguous memory of a size, for one image

#: ISA-L's state and what passes through it, at most.
INFLATER_BYTES = 256 << 10

_DEFLATE_WITH_32_KIB = 0x78  # first byte of a zlib stream
_BLOCK_BYTES = 65535  # the most that deflate can store in one
_FEED_BYTES = 32 << 10  # 4% faster than 8, and not slower than all at once
_BLOCK = Struct("<BHH")  # last?, length, its complement
_IDAT = Struct(">I4sH")  # length, name, and the two bytes that a zlib stream begins with
_CHECKSUMS = Struct(">II")
_HEAD_BYTES = 33 + (12 + 768) + (12 + 256)  # at most: up to IHDR, PLTE, tRNS
_AROUND_BYTES = _IDAT.size + _CHECKSUMS.size + len(IEND)


def new_room(size: int) -> Bytes:
    """Memory for one image, not kept."""
    return np.empty(size, np.uint8)


def store_pixels(png: CleanPng, header: ImageHeader, room: Room) -> Encoded | Bytes:
    """The same PNG with its pixels stored, in memory from `room`; or as it is if left to libpng.

    No more is inflated than the image. Compressed data that end early, are no deflate stream or
    fail its checksum are an `ImageError`.

    >>> import cv2
    >>> from headrace.decoding.png_chunks import clean_png
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
    out = room(start + body + _CHECKSUMS.size + len(IEND))
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
    view[end + _CHECKSUMS.size :] = IEND
    return out


def stored_bytes(header: ImageHeader) -> int:
    """The most that `store_pixels` asks room for, from what the header says."""
    rows = header.height * (-(-header.width * header.bits * header.channels // 8) + 1)
    return _HEAD_BYTES + _AROUND_BYTES + _blocks_bytes(rows)


def _blocks_bytes(size: int) -> int:
    return size + -(-size // _BLOCK_BYTES) * _BLOCK.size


def _first_byte(png: CleanPng) -> int:
    return next(part[0] for part in png.packed if part)


def _inflate(packed: tuple[memoryview, ...], size: int, out: memoryview) -> int | None:
    """Fill `out` with stored blocks; the checksum, or None if the stream has more than `size`.

    Piece by piece: memory for the whole image, taken anew for each, can cost more than it saves
    (in a thread, malloc returns it to the system every time).
    """
    inflater = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_ZLIB)
    at, left, block = 0, size, 0  # place in `out`, bytes to come in all and in this block
    for part in _portions(packed):
        fed: Encoded = part
        while not inflater.eof:
            if not block and left:
                block = min(left, _BLOCK_BYTES)
                _BLOCK.pack_into(out, at, block == left, block, block ^ 0xFFFF)
                at += _BLOCK.size
            # After the image, a byte more would show that the stream goes on.
            limit = block or 1
            try:
                piece = inflater.decompress(fed, limit)
            except _REFUSED as error:
                raise _damaged(str(error)) from None
            if piece and not left:
                return None
            out[at : at + len(piece)] = piece
            at += len(piece)
            left -= len(piece)
            block -= len(piece)
            if len(piece) < limit:
                break  # `needs_input` is no help: it is set while output is held back
            fed = b""
    if left or not inflater.eof:
        raise _damaged(f"they end after {size - left:,} of {size:,} bytes, or in the checksum")
    return inflater.crc


def _portions(packed: tuple[memoryview, ...]) -> Iterator[memoryview]:
    for part in packed:
        for at in range(0, len(part), _FEED_BYTES):
            yield part[at : at + _FEED_BYTES]


def _damaged(reason: str) -> ImageError:
    return ImageError(
        f"damaged PNG: its compressed data do not give the image ({reason})",
        remedy="Restore the file it came from.",
    )
