"""PNG pixels equal TensorFlow's to the bit; damage is never decoded."""

from __future__ import annotations

import doctest
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decoding.png_writer import KINDS, NAMES, SIGNATURE, chunk, ihdr, png, raw_rows, sample

from headrace.decoding import png as module
from headrace.decoding import png_chunks
from headrace.decoding.header import read_header
from headrace.decoding.image import decode_image
from headrace.errors import ImageError

quiet_import = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# ----------------------------------------------------------------- equality with TensorFlow


def tensorflow(data: bytes, channels: int | None, dtype: str) -> npt.NDArray[Any] | None:
    import tensorflow as tf

    try:
        pixels: npt.NDArray[Any] = tf.image.decode_image(data, channels, dtype).numpy()
    except tf.errors.InvalidArgumentError:
        return None
    return pixels


def ours(data: bytes, channels: int | None, dtype: Any) -> npt.NDArray[Any] | None:
    try:
        return decode_image(data, channels=channels, dtype=dtype)
    except ImageError:
        return None


def differences(data: bytes) -> list[tuple[Any, ...]]:
    """Where we do not do as TensorFlow does; refusals of ours are marked."""
    found: list[tuple[Any, ...]] = []
    for channels, dtype in itertools.product((None, 1, 2, 3, 4), ("uint8", "uint16")):
        expected, pixels = tensorflow(data, channels, dtype), ours(data, channels, dtype)
        if expected is None and pixels is None:
            continue
        if pixels is None:
            found.append((channels, "refused"))
        elif expected is None:
            found.append((channels, "TensorFlow refuses"))
        elif pixels.dtype != expected.dtype or not np.array_equal(pixels, expected):
            found.append((channels, dtype, "OTHER PIXELS"))
    return sorted(set(found), key=str)


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize(
    ("colour", "bits"), KINDS, ids=[f"{NAMES[colour]}-{bits}" for colour, bits in KINDS]
)
def test_every_kind_equals_tensorflow(colour: int, bits: int) -> None:
    more_than_tensorflow = [(2, "TensorFlow refuses")] if colour == 4 else []
    for shape in [(1, 1), (1, 9), (5, 3), (13, 21)]:
        for interlace in (False, True):
            data = sample(colour, bits, shape, interlace=interlace)
            assert differences(data) == more_than_tensorflow, (shape, interlace)
            if colour in (0, 2, 3):
                data = sample(colour, bits, shape, interlace=interlace, transparent=True)
                refused = [(4, "refused")] if colour == 0 else []
                assert differences(data) == refused, (shape, interlace, "transparent")


@pytest.mark.tfds
@quiet_import
@pytest.mark.parametrize("colour", NAMES, ids=NAMES.values())
def test_gamma_and_profiles_equal_tensorflow_except_from_colour_to_grey(colour: int) -> None:
    for tone in [
        chunk(b"gAMA", struct.pack(">I", 45455)),
        chunk(b"gAMA", struct.pack(">I", 100_000)),
        chunk(b"sRGB", b"\0"),
        chunk(b"iCCP", b"broken\0\0" + zlib.compress(b"no profile")),
    ]:
        for bits in (8, 16) if colour != 3 else (8,):
            found = differences(sample(colour, bits, extra=tone))
            assert all(other in [(1, "refused"), (2, "TensorFlow refuses")] for other in found)
            assert ((1, "refused") in found) == (colour in (2, 3, 6))


@pytest.mark.tfds
@quiet_import
def test_chunks_beside_the_pixels_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    turned = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0")
    animated = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(
        b"fcTL", struct.pack(">IIIIIHHBB", 0, 5, 5, 2, 2, 1, 10, 1, 1)
    )
    others: dict[str, Any] = {
        "turned": {"extra": turned},
        "animated": {"extra": animated},
        "text": {"extra": chunk(b"tEXt", b"a\0b"), "late": chunk(b"tIME", b"\7\xe8\1\1\1\1\1")},
        "background": {"extra": chunk(b"bKGD", b"\0\0\0\0\0\0")},
        "reserved": {"extra": chunk(b"abcd", b"x")},
        "suggested palette": {"palette": b"abcdef"},
    }
    plain = decode_image(sample(2, 8))
    for name, more in others.items():
        data = sample(2, 8, **more)
        assert not differences(data), name
        capfd.readouterr()
        np.testing.assert_array_equal(decode_image(data), plain, name)
        assert capfd.readouterr() == ("", ""), name
    grey = png(np.zeros((3, 4, 1), int), 0, 8, palette=b"abc")
    assert not differences(grey)
    capfd.readouterr()
    decode_image(grey)
    assert capfd.readouterr() == ("", "")


@pytest.mark.tfds
@quiet_import
def test_images_written_by_tfds_equal_its_own_reading() -> None:
    import tensorflow_datasets as tfds

    rng = np.random.default_rng(0)
    for dtype, channels in itertools.product(("uint8", "uint16"), (1, 3, 4)):
        feature = tfds.features.Image(
            shape=(None, None, channels), dtype=np.dtype(dtype), encoding_format="png"
        )
        pixels = rng.integers(0, 1 << 16, (48, 64, channels)).astype(dtype)
        data = feature.encode_example(pixels)
        found = decode_image(data, channels=channels, dtype=dtype)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, feature.decode_example(data).numpy())
        np.testing.assert_array_equal(found, pixels)


@pytest.mark.tfds
@quiet_import
def test_float_images_of_tfds_come_back_bit_by_bit() -> None:
    import tensorflow_datasets as tfds

    feature = tfds.features.Image(shape=(None, None, 1), dtype=np.float32)
    pixels = np.random.default_rng(0).integers(0, 1 << 32, (9, 7, 1), np.uint32).view(np.float32)
    pixels[0, :4, 0] = [np.nan, np.inf, -0.0, 1e-42]
    data = feature.encode_example(pixels)
    found = decode_image(data, channels=1, dtype="float32")
    assert found.shape == (9, 7, 1)
    for expected in (pixels, feature.decode_example(data).numpy()):
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


# ----------------------------------------------------------------- damage

PIXELS = np.random.default_rng(3).integers(0, 256, (20, 30, 3))
DEFLATED = zlib.compress(raw_rows(PIXELS, 2, 8))
END = chunk(b"IEND", b"")


def with_data(deflated: bytes) -> bytes:
    return SIGNATURE + ihdr(PIXELS, 2, 8) + chunk(b"IDAT", deflated) + END


def bad_crc(data: bytes, kind: bytes) -> bytes:
    at = data.index(kind) - 4
    last = at + 11 + int.from_bytes(data[at : at + 4], "big")
    return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]


def plain(**more: Any) -> bytes:
    return png(PIXELS, 2, 8, **more)


def indexed(**more: Any) -> bytes:
    return png(PIXELS[..., :1] % 16, 3, 4, **more)


DAMAGED = {
    "bad CRC of IHDR": (bad_crc(plain(), b"IHDR"), "CRC of its IHDR"),
    "bad CRC of IDAT": (bad_crc(plain(), b"IDAT"), "CRC of its IDAT chunk at byte 33"),
    "bad CRC of IEND": (bad_crc(plain(), b"IEND"), "CRC of its IEND"),
    "bad CRC of text": (bad_crc(plain(extra=chunk(b"tEXt", b"a\0b")), b"tEXt"), "CRC of its tEXt"),
    "unknown critical": (plain(extra=chunk(b"ABCD", b"x")), "unknown critical chunk ABCD"),
    "no letters": (plain(extra=chunk(b"a1Cd", b"x")), "chunk 0x61314364 of 1 bytes"),
    "second IHDR": (plain(extra=ihdr(PIXELS, 2, 8)), "unknown critical chunk IHDR"),
    "chunk too long": (plain(extra=b"\xff\xff\xff\xffzzzz"), "chunk zzzz of 4294967295 bytes"),
    "no pixels": (SIGNATURE + ihdr(PIXELS, 2, 8) + END, "no IDAT chunk"),
    "divided pixels": (
        plain(late=chunk(b"tEXt", b"a\0b") + chunk(b"IDAT", b"x")),
        "other chunks between its IDAT",
    ),
    "too few bytes": (
        SIGNATURE + ihdr(np.empty((8000, 8000, 1)), 2, 8) + chunk(b"IDAT", DEFLATED) + END,
        "claims 8000 x 8000 pixels in",
    ),
    "no palette": (indexed(), "lacks its PLTE"),
    "empty palette": (indexed(palette=b""), "PLTE of 0 bytes"),
    "odd palette": (indexed(palette=b"abcd"), "PLTE of 4 bytes"),
    "two palettes": (plain(palette=b"abc", extra=chunk(b"PLTE", b"abc")), "misplaced or misshapen"),
    "late palette": (plain(late=chunk(b"PLTE", b"abc")), "PLTE of 3 bytes"),
    "odd transparency": (plain(transparency=b"abc"), "tRNS of 3 bytes"),
    "long transparency": (indexed(palette=b"abcdef", transparency=b"123"), "tRNS of 3 bytes"),
    "early transparency": (indexed(extra=chunk(b"tRNS", b"1"), palette=b"abc"), "tRNS of 1 bytes"),
    "late transparency": (plain(late=chunk(b"tRNS", b"abcdef")), "tRNS of 6 bytes"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_and_nothing_is_printed(
    case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data, message = DAMAGED[case]
    with pytest.raises(ImageError) as caught:
        decode_image(data)
    assert message in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "deflated",
    [
        DEFLATED[: len(DEFLATED) // 2],
        DEFLATED[:-4],
        DEFLATED[:-1] + bytes([DEFLATED[-1] ^ 1]),
        DEFLATED[:60] + b"\xff" * 20 + DEFLATED[80:],
        b"\x79" + DEFLATED[1:],
        zlib.compress(raw_rows(PIXELS, 2, 8)[:-100]),
        zlib.compress(b"\x09" + raw_rows(PIXELS, 2, 8)[1:]),
    ],
)
def test_wrong_data_in_a_chunk_with_a_right_crc_are_refused(deflated: bytes) -> None:
    with pytest.raises(ImageError, match="compressed data do not give the image"):
        decode_image(with_data(deflated))


FUZZED = {
    **{f"{NAMES[colour]}-{bits}": sample(colour, bits) for colour, bits in KINDS},
    "transparent": sample(3, 4, transparent=True),
    "interlaced": sample(6, 8, interlace=True),
    "text": sample(2, 8, extra=chunk(b"tEXt", b"name\0value"), late=chunk(b"zTXt", b"a\0\0b")),
}


@pytest.mark.parametrize("kind", FUZZED)
def test_a_png_cut_anywhere_is_refused(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    for length in range(len(FUZZED[kind])):
        with pytest.raises(ImageError):
            decode_image(FUZZED[kind][:length])
    assert capfd.readouterr() == ("", "")


def mutations(data: bytes, where: int, patch: bytes) -> Iterator[bytes]:
    at = where % len(data)
    yield data[:at] + patch + data[at + len(patch) :]
    yield data[:at] + patch + data[at:]
    yield data[:at] + data[at + len(patch) :]


def test_any_mutation_gives_an_image_error_or_the_same_pixels_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(FUZZED)), st.integers(0, 1 << 30), st.binary(max_size=6))
    def mutate(kind: str, where: int, patch: bytes) -> None:
        for damaged in mutations(FUZZED[kind], where, patch):
            try:
                pixels = decode_image(damaged)
            except ImageError:
                continue
            np.testing.assert_array_equal(pixels, decode_image(FUZZED[kind]))

    mutate()
    assert capfd.readouterr() == ("", "")


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(FUZZED)),
    which=st.integers(0, 9),
    where=st.integers(0, 1 << 30),
    patch=st.binary(min_size=1, max_size=6),
)
def test_mutations_under_right_crcs_give_an_image_error_or_the_shape_of_the_header(
    kind: str, which: int, where: int, patch: bytes
) -> None:
    data = FUZZED[kind]
    chunks, at = [], 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    name, body = chunks[which % len(chunks)]
    for damaged in mutations(body or b"\0", where, patch):
        chunks[which % len(chunks)] = (name, damaged)
        mutated = SIGNATURE + b"".join(itertools.starmap(chunk, chunks))
        try:
            pixels = decode_image(mutated, max_pixels=1 << 22)
        except ImageError:
            continue
        header = read_header(mutated)
        assert pixels.shape[:2] == (header.height, header.width)


def test_opencv_alone_would_turn_the_picture() -> None:
    """Why the chunks are cleaned: OpenCV heeds the orientation of a PNG."""
    turned = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0")
    data = sample(2, 8, extra=turned)
    turned_pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert turned_pixels.shape == (21, 13, 3)
    assert decode_image(data).shape == (13, 21, 3)


@pytest.mark.parametrize("checked", [module, png_chunks])
def test_the_examples_in_the_docstrings_hold(checked: Any) -> None:
    assert doctest.testmod(checked).failed == 0
