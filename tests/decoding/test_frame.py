"""Any image as TFDS decodes it; a camera's frame in its place in the batch, and only there."""

from __future__ import annotations

import mmap
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decoding.frame import FrameDecoder, check_camera, decode_image
from headrace.decoding.png import INFLATER_BYTES
from headrace.decoding.resize import Filter, resize_into
from headrace.errors import ImageError, UsageError
from headrace.testing.oxe29 import datasets
from headrace.testing.picture import Scene, View
from headrace.testing.values import encode_image, encode_png
from tests.decoding.pictures import picture

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FILTERS: list[Filter] = ["bilinear", "area", "nearest"]
KINDS = [f"{encoding} {channels}" for encoding in ("jpeg", "png") for channels in (1, 3)] + [
    "png 4",
    "png 2",
    "png16 1",
    "png16 3",
]


def encoded(kind: str, height: int, width: int, seed: int = 0) -> bytes:
    """An image by its encoding and stored channels, such as "png16 3"."""
    encoding, channels = kind.split()
    pixels = picture(height, width, int(channels), seed)
    if encoding == "png16":
        return encode_png(pixels.astype(np.uint16) * 251 + 17)
    if encoding == "png":
        return encode_png(pixels)
    space = "GRAY" if channels == "1" else "RGB"
    data: bytes = simplejpeg.encode_jpeg(pixels, 90, space, "444" if channels == "1" else "420")
    return data


def place(size: tuple[int, int] = (32, 40)) -> npt.NDArray[np.uint8]:
    return np.full((*size, 3), 77, np.uint8)


def decoded(
    data: bytes, size: tuple[int, int], filter: Filter = "bilinear", **declared: Any
) -> npt.NDArray[np.uint8]:
    out = place(size)
    FrameDecoder(filter=filter).decode(data, out, **declared)
    return out


def tensorflow(data: bytes, size: tuple[int, int], channels: int) -> npt.NDArray[Any]:
    """As a training program does it: TFDS's decoding, three channels, resize, round."""
    import tensorflow as tf

    pixels = tf.image.decode_image(data, channels, expand_animations=False)
    pixels = tf.repeat(pixels, 3, axis=-1) if channels == 1 else pixels[..., :3]
    if tuple(pixels.shape[:2]) == size:
        same: npt.NDArray[Any] = pixels.numpy()
        return same
    rounded = tf.clip_by_value(tf.round(tf.image.resize(pixels, size)), 0, 255)
    resized: npt.NDArray[Any] = tf.cast(rounded, tf.uint8).numpy()
    return resized


# ----------------------------------------------------------------- against TensorFlow


@pytest.mark.tfds
@pytest.mark.parametrize("name", sorted(datasets()))
def test_every_main_camera_of_the_registry_gives_tensorflows_pixels(name: str) -> None:
    dataset = datasets()[name]
    camera = dataset.cameras[dataset.known.camera.removeprefix("steps/")]
    height, width, channels = camera.shape
    assert height
    assert width
    scene = Scene(View(name, dataset.number, 0, "image", height, width, channels), 3, 1, (0.4, 0.7))
    shown = scene.frame(2, np.array([0.5, 0.6, 0.1], np.float32))
    data = encode_image(shown, camera.encoding_format)
    same = decoded(data, (height, width), channels=channels)
    assert np.array_equal(same, tensorflow(data, (height, width), channels))
    for size in ((256, 256), (224, 224)):
        found, expected = decoded(data, size, channels=channels), tensorflow(data, size, channels)
        assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.tfds
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_declared_channels_become_three_whatever_is_stored(kind: str, channels: int) -> None:
    data = encoded(kind, 37, 53)
    if kind.startswith("jpeg") and channels == 4:
        with pytest.raises(ImageError, match="decoded to 4"):
            decoded(data, (37, 53), channels=channels)
        return
    same = decoded(data, (37, 53), channels=channels)
    assert np.array_equal(same, tensorflow(data, (37, 53), channels))
    for size in ((32, 40), (64, 64), (20, 70)):
        found, expected = decoded(data, size, channels=channels), tensorflow(data, size, channels)
        assert np.abs(found.astype(int) - expected).max() <= 1, size


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_channels_are_decoded_to_three(kind: str) -> None:
    data = encoded(kind, 20, 30)
    assert np.array_equal(
        decoded(data, (16, 16), channels=None), decoded(data, (16, 16), channels=3)
    )


def test_a_camera_declared_grey_is_grey_even_if_its_image_has_colours() -> None:
    for kind in ("jpeg 3", "png 3"):
        data = encoded(kind, 20, 30)
        for size in ((20, 30), (16, 16)):
            pixels = decoded(data, size, channels=1)
            assert (pixels == pixels[..., :1]).all()
            assert not np.array_equal(pixels, decoded(data, size, channels=3))


# ----------------------------------------------------------------- composition and memory

side = st.integers(1, 70)


@settings(max_examples=120, deadline=None)
@given(side, side, side, side, st.sampled_from(KINDS), st.sampled_from(FILTERS), st.booleans())
def test_a_frame_is_its_image_resized_in_its_place_and_nothing_else_is_written(
    h: int, w: int, to_h: int, to_w: int, kind: str, filter: Filter, grey: bool
) -> None:
    data = encoded(kind, h, w)
    batch = np.full((3, 2, to_h, to_w, 3), 77, np.uint8)
    decoder = FrameDecoder(filter=filter)
    decoder.decode(data, batch[1, 0], channels=1 if grey else 3)
    expected = place((to_h, to_w))
    plain = decode_image(data, channels=1 if grey else 3)
    resize_into(np.repeat(plain, 3, axis=2) if grey else plain, expected, filter)
    assert np.array_equal(batch[1, 0], expected)
    batch[1, 0] = 77
    assert (batch == 77).all()
    wide = 3 if kind.startswith("png16") else 1  # 16 bits are outside what the limit promises
    assert decoder.scratch_bytes <= wide * decoder.scratch_limit((h, w), (to_h, to_w))


def test_a_decoder_that_is_used_again_gives_what_a_new_one_gives() -> None:
    decoder = FrameDecoder()
    for seed, (h, w) in enumerate([(40, 60), (10, 10), (90, 20), (32, 40), (5, 100), (64, 64)]):
        for kind in KINDS:
            for channels in (1, 3):
                data, out = encoded(kind, h, w, seed), place()
                decoder.decode(data, out, channels=channels)
                assert np.array_equal(out, decoded(data, (32, 40), channels=channels))


def test_scratch_grows_to_the_largest_image_and_stays() -> None:
    decoder = FrameDecoder()
    assert decoder.scratch_bytes == 0
    decoder.decode(encoded("jpeg 3", 32, 40), place())
    assert decoder.scratch_bytes == 0, "an image of the right size needs none"
    sizes = [(20, 30), (60, 80), (40, 50), (60, 80)]
    counted = []
    for size in sizes:
        decoder.decode(encoded("jpeg 3", *size), place())
        counted.append(decoder.scratch_bytes)
    assert counted == [20 * 30 * 3, 60 * 80 * 3, 60 * 80 * 3, 60 * 80 * 3]
    decoder.decode(encoded("png 3", 50, 50), place())
    temporary = 2 * 50 * 50 * 3 + INFLATER_BYTES
    assert decoder.scratch_bytes == 60 * 80 * 3 + temporary, "a PNG's pixels are temporary"
    assert repr(decoder) == f"FrameDecoder(filter='bilinear', scratch_bytes={14_400 + temporary})"


@pytest.mark.parametrize("filter", FILTERS)
def test_no_more_memory_is_taken_than_scratch_bytes_says(filter: Filter) -> None:
    decoder, out = FrameDecoder(filter=filter), place((256, 256))
    images = [encoded("jpeg 3", 480, 640), encoded("jpeg 3", 180, 320)]
    for data in images:
        decoder.decode(data, out)  # the buffer is there, the tables are cached
    room = decoder.scratch_bytes - 480 * 640 * 3
    tracemalloc.start()
    try:
        for data in images * 3:
            decoder.decode(data, out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= room + 16_384
    assert decoder.scratch_bytes <= decoder.scratch_limit((480, 640), (256, 256))


@pytest.mark.parametrize("kind", ["png 1", "png 3", "png 4"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_is_inflated_in_the_memory_that_is_kept(kind: str, channels: int) -> None:
    """Python traces one of OpenCV's two copies of the pixels; all else fits beside the buffer."""
    decoder, out = FrameDecoder(), place((256, 256))
    images = [encoded(kind, 480, 640), encoded(kind, 180, 320), encoded("jpeg 3", 480, 640)]
    for data in images:
        decoder.decode(data, out, channels=channels)
    held = decoder.scratch_bytes
    tracemalloc.start()
    try:
        for data in images * 3:
            decoder.decode(data, out, channels=channels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pixels = channels * 480 * 640
    assert peak <= pixels + INFLATER_BYTES
    assert decoder.scratch_bytes == held
    assert held <= decoder.scratch_limit((480, 640), (256, 256))


def test_decoders_in_several_threads_fill_a_batch_with_the_bytes_of_one() -> None:
    cases = [(kind, 40 + i, 90 - i, i) for i in range(12) for kind in KINDS]
    images = [encoded(*case) for case in cases]
    one, many = (np.zeros((len(images), 48, 48, 3), np.uint8) for _ in range(2))
    decoder = FrameDecoder()
    for data, out in zip(images, one, strict=True):
        decoder.decode(data, out)

    def work(thread: int) -> None:
        own = FrameDecoder()
        for i in range(thread, len(images), 4):
            own.decode(images[i], many[i])

    for _ in range(3):
        many[...] = 0
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert np.array_equal(one, many)


# ----------------------------------------------------------------- damage


@pytest.mark.parametrize("kind", ["jpeg 3", "png 3", "png 1"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(40, 60), (32, 40)], ids=["same size", "resized"])
def test_a_damaged_frame_raises_and_leaves_its_neighbours_and_the_decoder_as_they_were(
    kind: str, channels: int, size: tuple[int, int]
) -> None:
    data = encoded(kind, 40, 60)
    spoiled = [data[: len(data) // 2], data[:-30], data[:20], b"", b"GIF89a" + data]
    decoder = FrameDecoder()
    batch = np.full((3, *size, 3), 77, np.uint8)
    for bad in spoiled:
        with pytest.raises(ImageError):
            decoder.decode(bad, batch[1], channels=channels)
        assert (batch[[0, 2]] == 77).all()
        if size != (40, 60):
            assert (batch[1] == 77).all(), "an image to resize is decoded elsewhere first"
    decoder.decode(data, batch[1], channels=channels)
    assert np.array_equal(batch[1], decoded(data, size, channels=channels))


@pytest.mark.tfds
def test_no_flipped_byte_of_a_png_goes_unnoticed() -> None:
    """TensorFlow's encoder cuts the pixels into chunks, each with a CRC that libpng checks."""
    import tensorflow as tf

    data = tf.io.encode_png(picture(120, 160)).numpy()
    assert data.count(b"IDAT") > 3
    rng = np.random.default_rng(0)
    decoder, out = FrameDecoder(), place()
    for at in [*rng.integers(33, len(data), 150), *range(len(data) - 30, len(data))]:
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(ImageError):
            decoder.decode(bad, out)
    assert (out == 77).all()


def test_a_header_that_claims_too_many_pixels_takes_no_memory() -> None:
    decoder = FrameDecoder(max_pixels=40 * 60 - 1)
    for kind in ("jpeg 3", "png 3"):
        with pytest.raises(ImageError, match="40 x 60 .* 2,399"):
            decoder.decode(encoded(kind, 40, 60), place())
    assert decoder.scratch_bytes == 0


# ----------------------------------------------------------------- invalid requests


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_depth_is_refused_because_nothing_says_how_it_scales(dtype: str) -> None:
    data = bytes(cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1])
    for attempt in (
        lambda: check_camera(1, dtype),
        lambda: FrameDecoder().decode(data, place(), channels=1, dtype=dtype),
    ):
        with pytest.raises(UsageError, match=dtype):
            attempt()


@pytest.mark.parametrize("channels", [0, 2, 5, -1])
def test_other_numbers_of_channels_are_refused(channels: int) -> None:
    with pytest.raises(UsageError, match=f"{channels} channels"):
        check_camera(channels, "uint8")


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((8, 8, 3), np.int8),
        np.zeros((3, 8, 8), np.uint8).transpose(1, 2, 0),
        np.frombuffer(bytes(192), np.uint8).reshape(8, 8, 3),
    ],
    ids=["2-d", "4 channels", "empty", "int8", "strided", "read-only"],
)
def test_an_unsuitable_out_array_is_refused_with_its_shape(out: Any) -> None:
    with pytest.raises(UsageError) as caught:
        FrameDecoder().decode(encoded("png 3", 8, 8), out)
    assert f"{out.dtype} {list(out.shape)}" in str(caught.value)


def test_an_unknown_filter_is_refused_when_the_decoder_is_made() -> None:
    unknown: Any = "lanczos"
    with pytest.raises(UsageError, match="'lanczos'"):
        FrameDecoder(filter=unknown)


# ----------------------------------------------------------------- decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype(np.uint8)
JPEG, PNG = (bytes(cv2.imencode(kind, PIXELS)[1]) for kind in (".jpg", ".png"))


def png_of_size(height: int, width: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg_of_size(height: int, width: int) -> bytes:
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


@pytest.mark.parametrize("data", [png_of_size(60_000, 60_000), jpeg_of_size(60_000, 60_000)])
def test_a_header_that_claims_too_many_pixels_is_refused_with_size_and_limit(data: bytes) -> None:
    with pytest.raises(ImageError, match="60000 x 60000 .* 67,108,864") as caught:
        decode_image(data)
    assert "max_pixels" in caught.value.remedy


def test_the_caller_can_set_the_limit() -> None:
    assert decode_image(PNG, max_pixels=24 * 32).shape == (24, 32, 3)
    with pytest.raises(ImageError, match="767"):
        decode_image(PNG, max_pixels=24 * 32 - 1)


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
def test_encoded_bytes_may_lie_in_a_memory_mapped_file(data: bytes, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("request_", "value"),
    [
        ({"channels": 5}, "5 channels of uint8"),
        ({"channels": -1}, "-1 channels of uint8"),
        ({"channels": 3, "dtype": "float32"}, "3 channels of float32"),
        ({"dtype": "float64"}, "'float64'"),
    ],
)
def test_impossible_requests_are_usage_errors(request_: Any, value: str) -> None:
    with pytest.raises(UsageError, match=value):
        decode_image(PNG, **request_)


def test_a_jpeg_holds_neither_floats_nor_alpha() -> None:
    with pytest.raises(ImageError, match="float32"):
        decode_image(JPEG, dtype="float32")
    with pytest.raises(ImageError, match="decoded to 4"):
        decode_image(JPEG, channels=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([b"", JPEG[:3], JPEG[:200], PNG[:33], PNG[:41]]), st.binary(max_size=200))
def test_random_bytes_only_ever_raise_image_errors(start: bytes, rest: bytes) -> None:
    with pytest.raises(ImageError):
        decode_image(start + rest)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_resize_is_timed_where_there_is_one(channels: int) -> None:
    decoder = FrameDecoder()
    data = encode_png(np.zeros((40, 60, channels), np.uint8))
    decoder.decode(data, np.empty((40, 60, 3), np.uint8), channels=channels)
    assert decoder.resize_s == 0
    decoder.decode(data, np.empty((32, 32, 3), np.uint8), channels=channels)
    assert decoder.resize_s > 0
