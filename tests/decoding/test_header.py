"""Size and kind of an image from its first bytes."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decoding.header import ImageHeader, read_header
from headrace.errors import ImageError

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = cv2.imencode(".jpg", np.zeros((5, 7, 3), np.uint8))[1].tobytes()
SOF_AT = JPEG.index(b"\xff\xc0")


def ihdr(
    width: int = 7, height: int = 5, bits: int = 8, colour: int = 2, last: bytes = b"\0\0\0"
) -> bytes:
    return PNG + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, bits, colour) + last


def sof(
    marker: int = 0xC0, bits: int = 8, height: int = 5, width: int = 7, parts: int = 3
) -> bytes:
    frame = struct.pack(">HBHHB", 8 + 3 * parts, bits, height, width, parts) + b"\1\x11\0" * parts
    return b"\xff\xd8\xff" + bytes([marker]) + frame


@pytest.mark.parametrize("flags", [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_a_jpeg_tells_its_size(shape: tuple[int, ...], flags: list[int]) -> None:
    data = cv2.imencode(".jpg", np.zeros(shape, np.uint8), flags)[1].tobytes()
    channels = 3 if len(shape) == 3 else 1
    assert read_header(data) == ImageHeader("jpeg", 5, 7, channels, 8, bool(flags))
    assert read_header(memoryview(data)) == read_header(data)


@pytest.mark.parametrize(
    ("colour", "bits", "channels"),
    [(0, 1, 1), (0, 16, 1), (2, 8, 3), (3, 4, 3), (4, 16, 2), (6, 8, 4)],
)
def test_a_png_tells_its_size(colour: int, bits: int, channels: int) -> None:
    data = ihdr(colour=colour, bits=bits)
    assert read_header(data) == ImageHeader("png", 5, 7, channels, bits)


def test_metadata_before_the_frame_header_is_skipped() -> None:
    thumbnail = b"Exif\0\0" + JPEG  # a thumbnail has a frame header of its own
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = JPEG[:2] + segment + b"\xff\xff\xff" + sof(height=9)[3:]
    assert read_header(data).height == 9


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", "0 bytes"),
        (b"hello", "5 bytes that begin with 68 65 6c 6c 6f"),
        (b"GIF89a..........", "GIF"),
        (b"BM..............", "BMP"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        (b"II*\0............", "TIFF"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (PNG, "after 8 bytes"),
        (ihdr()[:-1], "after 28 bytes"),
        (ihdr().replace(b"IHDR", b"IDAT"), "IHDR"),
        (ihdr(width=0), "5 x 0"),
        (ihdr(height=1_000_001), "1000001 x 7"),
        (ihdr(bits=3), "colour type 2 with 3 bits"),
        (ihdr(colour=5), "colour type 5 with 8 bits"),
        (ihdr(last=b"\0\0\2"), "interlace 2"),
        (JPEG[:4], "after 4 bytes"),
        (JPEG[: SOF_AT + 10], f"after {SOF_AT + 10} bytes"),
        (JPEG[:SOF_AT] + b"\1" + JPEG[SOF_AT:], f"0x01 instead of a marker at byte {SOF_AT}"),
        (b"\xff\xd8\xff\xd9", "frame header"),
        (b"\xff\xd8\xff\xd8\xff", "marker 0xd8 out of place at byte 3"),
        (b"\xff\xd8\xff\xe0\0\1", "segment 0xe0 of length 1 at byte 4"),
        (b"\xff\xd8\xff\xc0\0\4\x08\0", "frame header of 2 bytes"),
        (sof(marker=0xC9), "SOF9 with 8 bits"),
        (sof(marker=0xC3), "SOF3 with 8 bits"),
        (sof(bits=12), "SOF0 with 12 bits"),
        (sof(height=0), "size of 0 x 7 with 3 components"),
        (sof(parts=2), "size of 5 x 7 with 2 components"),
    ],
)
def test_the_error_names_what_is_wrong_with_the_header(data: bytes, value: str) -> None:
    with pytest.raises(ImageError) as caught:
        read_header(data)
    assert value in str(caught.value)


@settings(max_examples=500, deadline=None)
@given(start=st.sampled_from([b"", JPEG[:3], PNG, ihdr()[:16], JPEG[:SOF_AT]]), rest=st.binary())
def test_any_bytes_give_a_header_or_an_image_error(start: bytes, rest: bytes) -> None:
    try:
        header = read_header(start + rest)
    except ImageError:
        return
    assert header.height > 0
    assert header.width > 0
    assert header.channels in (1, 2, 3, 4)


@pytest.mark.parametrize("data", [JPEG, ihdr()])
def test_a_header_is_read_from_any_beginning_that_holds_it_and_from_no_shorter_one(
    data: bytes,
) -> None:
    outcomes = []
    for length in range(len(data) + 1):
        try:
            outcomes.append(read_header(data[:length]) == read_header(data))
        except ImageError:
            outcomes.append(False)
    assert outcomes == sorted(outcomes)
