"""One call for any image: limits, the caller's memory, requests that cannot be."""

from __future__ import annotations

import doctest
import mmap
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decoding import image as module
from headrace.decoding.image import MAX_PIXELS, decode_image, decode_into
from headrace.errors import ImageError, UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype(np.uint8)
DEPTH = np.random.default_rng(1).integers(0, 1 << 16, (24, 32)).astype(np.uint16)


def encoded(kind: str, pixels: npt.NDArray[Any] = PIXELS) -> bytes:
    return bytes(cv2.imencode(kind, pixels)[1])


JPEG, PNG, DEPTH_PNG = encoded(".jpg"), encoded(".png"), encoded(".png", DEPTH)


def png_of_size(height: int, width: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg_of_size(height: int, width: int) -> bytes:
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


# ----------------------------------------------------------------- limits


@pytest.mark.parametrize("data", [png_of_size(60_000, 60_000), jpeg_of_size(60_000, 60_000)])
def test_a_header_that_claims_too_many_pixels_is_refused_with_size_limit_and_knob(
    data: bytes,
) -> None:
    out = np.empty((4, 4, 3), np.uint8)
    for attempt in (lambda: decode_image(data), lambda: decode_into(data, out)):
        with pytest.raises(ImageError) as caught:
            attempt()
        message = str(caught.value)
        assert "claims 60000 x 60000 pixels, over the limit of 67,108,864" in message
        assert "raise max_pixels" in message


def test_the_limit_is_the_callers_to_set() -> None:
    assert decode_image(PNG, max_pixels=24 * 32).shape == (24, 32, 3)
    with pytest.raises(ImageError, match="over the limit of 767"):
        decode_image(PNG, max_pixels=24 * 32 - 1)
    assert MAX_PIXELS == 1 << 26


# ----------------------------------------------------------------- the caller's memory


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_decoding_into_a_batch_writes_its_place_and_nothing_else(
    data: bytes, channels: int, dtype: Any
) -> None:
    batch = np.full((3, 24, 32, channels), 77, dtype)
    decode_into(data, batch[1])
    expected = decode_image(data, channels=channels, dtype=dtype)
    np.testing.assert_array_equal(batch[1], expected)
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
def test_memory_that_is_not_contiguous_is_written_just_as_well(data: bytes) -> None:
    canvas = np.full((24, 64, 3), 77, np.uint8)
    decode_into(data, canvas[:, 16:48])
    np.testing.assert_array_equal(canvas[:, 16:48], decode_image(data))
    assert (canvas[:, :16] == 77).all()
    assert (canvas[:, 48:] == 77).all()


def test_deep_and_float_images_decode_into_memory_of_their_type() -> None:
    depth = np.empty((24, 32, 1), np.uint16)
    decode_into(DEPTH_PNG, depth)
    np.testing.assert_array_equal(depth[..., 0], DEPTH)
    metres = np.random.default_rng(2).random((24, 32, 1), np.float32)
    stored = metres.view(np.uint8)[..., [2, 1, 0, 3]]  # OpenCV writes BGRA
    found = np.empty_like(metres)
    decode_into(encoded(".png", stored), found)
    np.testing.assert_array_equal(found, metres)


def test_a_place_of_another_size_is_refused_and_stays_as_it_was() -> None:
    out = np.full((24, 33, 3), 77, np.uint8)
    with pytest.raises(ImageError, match="image of 24 x 32 does not fit its place of 24 x 33"):
        decode_into(JPEG, out)
    assert (out == 77).all()


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
def test_encoded_bytes_may_lie_in_a_file_mapped_into_memory(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(b"before" + data + b"after")
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        view[6 : 6 + len(data)] as part,
    ):
        np.testing.assert_array_equal(decode_image(part), decode_image(data))
    np.testing.assert_array_equal(decode_image(bytearray(data)), decode_image(data))


def test_threads_do_not_disturb_each_other() -> None:
    batch = np.zeros((200, 24, 32, 3), np.uint8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode_into, [JPEG, PNG] * 100, batch))
    assert (batch[0::2] == decode_image(JPEG)).all()
    assert (batch[1::2] == decode_image(PNG)).all()


# ----------------------------------------------------------------- requests that cannot be


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"channels": 5}, "5 channels of uint8"),
        ({"channels": -1}, "-1 channels of uint8"),
        ({"channels": 3, "dtype": "float32"}, "3 channels of float32"),
        ({"dtype": "float64"}, "'float64'"),
    ],
)
def test_impossible_requests_are_usage_errors(request_: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode_image(PNG, **request_)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((24, 32), np.uint8),
        np.empty((24, 32, 0), np.uint8),
        np.empty((24, 32, 3), np.int8),
        np.frombuffer(bytes(24 * 32 * 3), np.uint8).reshape(24, 32, 3),
    ],
    ids=["two axes", "no channels", "int8", "read-only"],
)
def test_impossible_places_are_usage_errors(out: Any) -> None:
    with pytest.raises(UsageError):
        decode_into(PNG, out)


def test_a_jpeg_holds_neither_floats_nor_alpha() -> None:
    with pytest.raises(ImageError, match="cannot hold float32"):
        decode_image(JPEG, dtype="float32")
    with pytest.raises(ImageError, match="cannot be decoded to 4"):
        decode_image(JPEG, channels=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([b"", JPEG[:3], JPEG[:200], PNG[:33], PNG[:41]]), st.binary(max_size=200))
def test_random_bytes_only_ever_raise_image_errors(start: bytes, rest: bytes) -> None:
    with pytest.raises(ImageError):
        decode_image(start + rest)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0
