"""JPEG pixels equal TensorFlow's to the bit; damage is never decoded."""

from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decoding.frame import decode_image
from headrace.decoding.header import read_header
from headrace.decoding.jpeg import is_plain_jpeg
from headrace.errors import ImageError
from tests.decoding.pictures import ours, picture, tensorflow

quiet_import = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SUBSAMPLING = {
    "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
SIZES = [(1, 1), (1, 17), (7, 9), (8, 8), (16, 32), (37, 53)]


def encode(pixels: npt.NDArray[np.uint8], **options: int) -> bytes:
    flags = [
        value
        for name, number in options.items()
        for value in (getattr(cv2, f"IMWRITE_JPEG_{name.upper()}"), number)
    ]
    return bytes(cv2.imencode(".jpg", pixels, flags)[1])


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def without_first_segment(data: bytes) -> bytes:
    return data[:2] + data[4 + int.from_bytes(data[4:6], "big") :]


def assert_equal(data: bytes, case: object) -> None:
    for channels in (None, 1, 3, 4):
        expected, found = tensorflow(data, channels), ours(data, channels)
        if expected is None:
            assert found is None, (case, channels)
        else:
            assert found is not None, (case, channels)
            assert found.dtype == np.uint8
            np.testing.assert_array_equal(found, expected, f"{case} {channels}")


# ----------------------------------------------------------------- equality with TensorFlow


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize("subsampling", SUBSAMPLING)
@pytest.mark.parametrize("progressive", [0, 1])
def test_colour_equals_tensorflow(subsampling: str, progressive: int) -> None:
    for height, width in SIZES:
        for quality in (5, 75, 95, 100):
            for restart in (0, 2):
                options = {
                    "sampling_factor": SUBSAMPLING[subsampling],
                    "progressive": progressive,
                    "quality": quality,
                    "rst_interval": restart,
                }
                data = encode(picture(height, width), **options)
                assert_equal(data, (height, width, options))


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize("progressive", [0, 1])
def test_grey_equals_tensorflow(progressive: int) -> None:
    for height, width in SIZES:
        data = encode(picture(height, width)[..., 0], progressive=progressive)
        assert_equal(data, (height, width))


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize(("height", "width"), [(256, 256), (480, 640), (180, 320)])
def test_frames_of_common_sizes_written_by_tensorflow_equal_its_own_reading(
    height: int, width: int
) -> None:
    import tensorflow as tf

    pixels = picture(height, width)
    assert_equal(tf.io.encode_jpeg(pixels).numpy(), "default")
    assert_equal(tf.io.encode_jpeg(pixels, chroma_downsampling=False).numpy(), "444")
    assert_equal(tf.io.encode_jpeg(pixels, progressive=True).numpy(), "progressive")


@pytest.mark.tfds
@quiet_import
def test_colour_spaces_equal_tensorflow() -> None:
    data = encode(picture(37, 53))
    bare = without_first_segment(data)
    assert_equal(bare, "no JFIF segment")
    for transform, name in enumerate(["RGB", "YCbCr"]):
        adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))
        assert_equal(bare[:2] + adobe + bare[2:], name)


@pytest.mark.tfds
@quiet_import
def test_cmyk_equals_tensorflow_with_and_without_adobe_marker() -> None:
    for subsampling in ("444", "420"):
        data = simplejpeg.encode_jpeg(
            picture(37, 53, 4), colorspace="CMYK", colorsubsampling=subsampling
        )
        assert read_header(data).channels == 4
        assert_equal(data, "Adobe YCCK")
        assert_equal(without_first_segment(data), "plain CMYK")


@pytest.mark.tfds
@quiet_import
def test_orientation_thumbnail_and_trailing_bytes_change_nothing() -> None:
    plain = encode(picture(37, 53))
    turned = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    data = plain[:2] + segment(0xE1, turned) + segment(0xFE, plain[:900]) + plain[2:] + b"more"
    assert_equal(data, "exif")
    np.testing.assert_array_equal(decode_image(data), decode_image(plain))
    by_opencv: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert by_opencv.shape == (53, 37, 3)  # turned


@pytest.mark.tfds
@quiet_import
def test_sixteen_bits_equal_tensorflow() -> None:
    data = encode(picture(9, 5))
    expected = tensorflow(data, 3, "uint16")
    np.testing.assert_array_equal(decode_image(data, channels=3, dtype="uint16"), expected)


# ----------------------------------------------------------------- damage

KINDS = {
    "baseline": encode(picture(37, 53)),
    "progressive": encode(picture(37, 53), progressive=1),
    "restarts": encode(picture(37, 53), rst_interval=3),
    "grey": encode(picture(37, 53)[..., 0]),
    "cmyk": simplejpeg.encode_jpeg(picture(37, 53, 4), colorspace="CMYK"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_cut_anywhere_is_refused(kind: str) -> None:
    for length in range(len(KINDS[kind])):
        with pytest.raises(ImageError):
            decode_image(KINDS[kind][:length], channels=3)


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_are_refused_or_decoded_as_tensorflow_decodes_them(kind: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        data = bytearray(KINDS[kind])
        data[rng.integers(2, len(data))] ^= 1 << int(rng.integers(8))
        found = ours(bytes(data), 3)
        if found is not None:
            np.testing.assert_array_equal(found, tensorflow(bytes(data), 3))


def test_any_mutation_gives_an_image_error_or_the_shape_of_the_header_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(KINDS)), st.integers(0, 1 << 30), st.binary(max_size=6))
    def mutate(kind: str, where: int, patch: bytes) -> None:
        data = KINDS[kind]
        at = where % len(data)
        for damaged in (
            data[:at] + patch + data[at + len(patch) :],
            data[:at] + patch + data[at:],
            data[:at] + data[at + len(patch) :],
        ):
            try:
                pixels = decode_image(damaged, max_pixels=1 << 22)
            except ImageError:
                continue
            header = read_header(damaged)
            assert pixels.shape == (header.height, header.width, min(header.channels, 3))

    mutate()
    assert capfd.readouterr() == ("", "")


def test_damage_is_named_with_what_libjpeg_found() -> None:
    data = bytearray(KINDS["restarts"])
    at = data.index(b"\xff\xd1")
    del data[at - 4 : at]
    with pytest.raises(ImageError, match=r"JPEG of \d+ bytes: "):
        decode_image(bytes(data))


def test_a_size_that_the_bytes_cannot_hold_is_refused() -> None:
    data = bytearray(KINDS["baseline"])
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 8000, 8000)
    with pytest.raises(ImageError, match=r"8000 x 8000 .* \d+ bytes"):
        decode_image(bytes(data))


def test_too_many_scans_are_refused() -> None:
    data = KINDS["progressive"]
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageError, match=r"2\d\d scans .* 100"):
        decode_image(data[:-2] + last_scan * 200 + data[-2:])


# ----------------------------------------------------------------- JPEGs for a device

PLAIN_PIXELS = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)


def jpeg(pixels: npt.NDArray[Any] = PLAIN_PIXELS, *options: int) -> bytes:
    return cv2.imencode(".jpg", pixels, list(options))[1].tobytes()


@pytest.mark.parametrize("chroma", ["444", "422", "420"])
def test_whole_baseline_jpegs_are_plain(chroma: str) -> None:
    data = simplejpeg.encode_jpeg(PLAIN_PIXELS, colorsubsampling=chroma)
    assert is_plain_jpeg(data)
    assert is_plain_jpeg(memoryview(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff\xd9",
        b"GIF89a",
        cv2.imencode(".png", PLAIN_PIXELS)[1].tobytes(),
        jpeg(PLAIN_PIXELS, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        jpeg(PLAIN_PIXELS[..., 0]),
        jpeg()[:-2],  # its end is missing
        jpeg()[: len(jpeg()) // 2] + b"\xff\xd9"[:1],
        jpeg()[:2] + b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00\x00" + jpeg()[2:],
    ],
    ids=["nothing", "empty", "gif", "png", "progressive", "grey", "no end", "half", "adobe"],
)
def test_other_images_are_not_plain(data: bytes) -> None:
    assert not is_plain_jpeg(data)


def test_a_size_that_so_few_bytes_cannot_hold_is_not_plain() -> None:
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    assert not is_plain_jpeg(bytes(data))


def test_a_jpeg_cut_anywhere_never_raises_when_tested_for_plainness() -> None:
    data = jpeg()
    for stop in range(0, len(data), 7):
        is_plain_jpeg(data[:stop] + b"\xff\xd9")
