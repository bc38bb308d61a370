"""A writer of any PNG: every kind of pixels, all five filters, interlacing, chunks of all sorts."""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
NAMES = {0: "grey", 2: "RGB", 3: "palette", 4: "grey+alpha", 6: "RGBA"}
KINDS = [
    *((0, bits) for bits in (1, 2, 4, 8, 16)),
    *((3, bits) for bits in (1, 2, 4, 8)),
    *((colour, bits) for colour in (2, 4, 6) for bits in (8, 16)),
]
ADAM7 = [
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ihdr(pixels: npt.NDArray[Any], colour: int, bits: int, interlace: bool = False) -> bytes:
    height, width, _ = pixels.shape
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace))


def packed(pixels: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    rows = pixels.reshape(len(pixels), -1)
    if bits == 16:
        return rows.astype(">u2").view(np.uint8)
    if bits == 8:
        return rows.astype(np.uint8)
    split = (rows[..., np.newaxis] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(split.astype(np.uint8).reshape(len(rows), -1), axis=1)


def filtered(rows: npt.NDArray[np.uint8], step: int) -> bytes:
    """Each row by the next of the five filters."""
    above = np.zeros(rows.shape[1], int)
    lines = []
    for row, kind in zip(rows.astype(int), itertools.cycle(range(5)), strict=False):
        left, corner = (np.concatenate([np.zeros(step, int), r])[: len(r)] for r in (row, above))
        guess = left + above - corner
        far = [abs(guess - value) for value in (left, above, corner)]
        paeth = np.where(far[1] <= far[2], above, corner)
        paeth = np.where((far[0] <= far[1]) & (far[0] <= far[2]), left, paeth)
        predicted = [0 * row, left, above, (left + above) // 2, paeth][kind]
        lines.append(bytes([kind]) + ((row - predicted) % 256).astype(np.uint8).tobytes())
        above = row
    return b"".join(lines)


def raw_rows(pixels: npt.NDArray[Any], colour: int, bits: int, interlace: bool = False) -> bytes:
    step = max(1, SAMPLES[colour] * bits // 8)
    passes = ADAM7 if interlace else [(0, 0, 1, 1)]
    images = [pixels[y::dy, x::dx] for y, x, dy, dx in passes]
    return b"".join(filtered(packed(image, bits), step) for image in images if image.size)


def png(
    pixels: npt.NDArray[Any],
    colour: int,
    bits: int,
    *,
    interlace: bool = False,
    palette: bytes | None = None,
    transparency: bytes | None = None,
    extra: bytes = b"",
    late: bytes = b"",
    pieces: int = 3,
) -> bytes:
    deflated = zlib.compress(raw_rows(pixels, colour, bits, interlace))
    size = len(deflated) // pieces + 1
    return b"".join(
        [
            SIGNATURE,
            ihdr(pixels, colour, bits, interlace),
            extra,
            b"" if palette is None else chunk(b"PLTE", palette),
            b"" if transparency is None else chunk(b"tRNS", transparency),
            *(chunk(b"IDAT", deflated[at : at + size]) for at in range(0, len(deflated), size)),
            late,
            chunk(b"IEND", b""),
        ]
    )


def sample(
    colour: int,
    bits: int,
    shape: tuple[int, int] = (13, 21),
    transparent: bool = False,
    **more: Any,
) -> bytes:
    rng = np.random.default_rng(colour * 100 + bits)
    pixels = rng.integers(0, 1 << bits, (*shape, SAMPLES[colour]))
    if colour == 3:
        more["palette"] = rng.bytes(3 << bits)
        if transparent:
            more["transparency"] = rng.bytes(min(5, 1 << bits))
    elif transparent:
        more["transparency"] = pixels[0, 0].astype(">u2").tobytes()
    return png(pixels, colour, bits, **more)
