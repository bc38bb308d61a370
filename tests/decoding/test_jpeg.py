"""JPEG pixels equal TensorFlow's to the bit; damage is never decoded."""

from __future__ import annotations

import doctest
import struct
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decoding import jpeg as module
from headrace.decoding.header import read_header
from headrace.decoding.image import decode_image
from headrace.errors import ImageError

quiet_import = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SUBSAMPLING = {
    "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
SIZES = [(1, 1), (1, 17), (7, 9), (8, 8), (16, 32), (37, 53)]


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Waves with noise: every frequency in it, unlike noise alone or flat colours."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / 7 + c) + 60 * np.cos(y / (5 + c)) for c in range(channels)]
    noisy = np.stack(waves, -1) + rng.normal(0, 15, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


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


def tensorflow(data: bytes, channels: int | None, dtype: str = "uint8") -> npt.NDArray[Any] | None:
    """TensorFlow's pixels, None where it refuses."""
    import tensorflow as tf

    try:
        pixels: npt.NDArray[Any] = tf.image.decode_image(data, channels, dtype).numpy()
    except tf.errors.InvalidArgumentError:
        return None
    return pixels


def ours(data: bytes, channels: int | None, dtype: Any = "uint8") -> npt.NDArray[Any] | None:
    try:
        return decode_image(data, channels=channels, dtype=dtype)
    except ImageError:
        return None


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
def test_frames_of_usual_size_written_by_tensorflow_equal_its_own_reading(
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
    with pytest.raises(ImageError, match=r"damaged JPEG of \d+ bytes: .*Restore the file"):
        decode_image(bytes(data))


def test_a_size_that_the_bytes_cannot_hold_is_refused() -> None:
    data = bytearray(KINDS["baseline"])
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 8000, 8000)
    with pytest.raises(ImageError, match=r"claims 8000 x 8000 pixels in \d+ bytes"):
        decode_image(bytes(data))


def test_scans_without_end_are_refused() -> None:
    data = KINDS["progressive"]
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageError, match=r"JPEG of 2\d\d scans is over the limit of 100"):
        decode_image(data[:-2] + last_scan * 200 + data[-2:])


def test_the_example_in_the_docstring_holds() -> None:
    assert doctest.testmod(module).failed == 0
