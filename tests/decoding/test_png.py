"""PNG pixels equal TensorFlow's to the bit, however they are inflated; damage is never decoded."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decoding.frame import decode_image
from headrace.decoding.header import read_header
from headrace.decoding.png import (
    HAS_ISAL,
    INFLATER_BYTES,
    clean_png,
    decode_png,
    new_room,
    store_pixels,
    stored_bytes,
)
from headrace.errors import ImageError
from tests.decoding.pictures import ours, tensorflow
from tests.decoding.png_writer import (
    KINDS,
    NAMES,
    SIGNATURE,
    chunk,
    filtered,
    ihdr,
    png,
    raw_rows,
    sample,
)

needs_isal = pytest.mark.skipif(not HAS_ISAL, reason="no wheel of isal for this platform")
quiet_import = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# ----------------------------------------------------------------- equality with TensorFlow


def differences(data: bytes) -> list[tuple[Any, ...]]:
    """Where we differ from TensorFlow; refusals are marked."""
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
    "bad CRC of IHDR": (bad_crc(plain(), b"IHDR"), "IHDR"),
    "bad CRC of IDAT": (bad_crc(plain(), b"IDAT"), "IDAT chunk at byte 33"),
    "bad CRC of IEND": (bad_crc(plain(), b"IEND"), "IEND"),
    "bad CRC of text": (bad_crc(plain(extra=chunk(b"tEXt", b"a\0b")), b"tEXt"), "tEXt"),
    "unknown critical": (plain(extra=chunk(b"ABCD", b"x")), "ABCD"),
    "no letters": (plain(extra=chunk(b"a1Cd", b"x")), "chunk 0x61314364 of 1 bytes"),
    "second IHDR": (plain(extra=ihdr(PIXELS, 2, 8)), "IHDR"),
    "chunk too long": (plain(extra=b"\xff\xff\xff\xffzzzz"), "chunk zzzz of 4294967295 bytes"),
    "no pixels": (SIGNATURE + ihdr(PIXELS, 2, 8) + END, "IDAT"),
    "divided pixels": (
        plain(late=chunk(b"tEXt", b"a\0b") + chunk(b"IDAT", b"x")),
        "IDAT",
    ),
    "too few bytes": (
        SIGNATURE + ihdr(np.empty((8000, 8000, 1)), 2, 8) + chunk(b"IDAT", DEFLATED) + END,
        "8000 x 8000",
    ),
    "no palette": (indexed(), "PLTE"),
    "empty palette": (indexed(palette=b""), "PLTE of 0 bytes"),
    "odd palette": (indexed(palette=b"abcd"), "PLTE of 4 bytes"),
    "two palettes": (plain(palette=b"abc", extra=chunk(b"PLTE", b"abc")), "PLTE"),
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
    data, value = DAMAGED[case]
    with pytest.raises(ImageError) as caught:
        decode_image(data)
    assert value in str(caught.value)
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
def test_wrong_data_in_a_chunk_with_a_right_crc_is_refused(deflated: bytes) -> None:
    with pytest.raises(ImageError, match="damaged PNG"):
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
    """Why the chunks are cleaned: OpenCV obeys the orientation of a PNG."""
    turned = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0")
    data = sample(2, 8, extra=turned)
    turned_pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert turned_pixels.shape == (21, 13, 3)
    assert decode_image(data).shape == (13, 21, 3)


# ----------------------------------------------------------------- pixels inflated by ISA-L

RNG = np.random.default_rng(5)
NOISE = RNG.integers(0, 256, (40, 60, 3))
NOISE_ROWS = raw_rows(NOISE, 2, 8)


def with_idats(*parts: bytes, pixels: npt.NDArray[Any] = NOISE, colour: int = 2) -> bytes:
    chunks = (chunk(b"IDAT", part) for part in parts)
    return SIGNATURE + ihdr(pixels, colour, 8) + b"".join(chunks) + chunk(b"IEND", b"")


def decoded(data: bytes, *, stored: bool, **requested: Any) -> npt.NDArray[Any] | None:
    try:
        return decode_png(data, read_header(data), stored=stored, **requested)
    except ImageError:
        return None


def is_stored(data: bytes) -> bool:
    header = read_header(data)
    return isinstance(store_pixels(clean_png(data, header), header, new_room), np.ndarray)


def assert_twins(data: bytes, name: Any = "") -> None:
    """Stored and plain give the same, whatever is requested."""
    for channels, bits in itertools.product((None, 1, 2, 3, 4), (8, 16)):
        plain = decoded(data, stored=False, channels=channels, bits=bits)
        stored = decoded(data, stored=True, channels=channels, bits=bits)
        if plain is None:
            assert stored is None, (name, channels)
        else:
            assert stored is not None, (name, channels)
            assert stored.dtype == plain.dtype
            np.testing.assert_array_equal(stored, plain, str((name, channels)))


# ----------------------------------------------------------------- equality with the plain twin


@needs_isal
@pytest.mark.parametrize(
    ("colour", "bits"), KINDS, ids=[f"{NAMES[colour]}-{bits}" for colour, bits in KINDS]
)
def test_every_kind_gives_the_pixels_that_libpng_inflates(colour: int, bits: int) -> None:
    for shape in [(1, 1), (1, 9), (5, 3), (13, 21), (150, 190)]:
        for pieces, transparent in itertools.product((1, 3, 40), (False, True)):
            if transparent and colour not in (0, 2, 3):
                continue
            data = sample(colour, bits, shape, transparent, pieces=pieces)
            assert is_stored(data)
            assert_twins(data, (shape, pieces, transparent))


@needs_isal
def test_chunks_that_do_not_concern_the_pixels_are_left_out_of_both_twins() -> None:
    others: dict[str, Any] = {
        "extra": chunk(b"tEXt", b"a\0b"),
        "late": chunk(b"tIME", b"\7\xe8\1\1\1\1\1"),
    }
    for colour in NAMES:
        data = sample(colour, 8, **others)
        header = read_header(data)
        clean = clean_png(data, header)
        for twin in (clean.plain(), store_pixels(clean, header, new_room)):
            assert b"tEXt" not in bytes(twin)
            assert b"tIME" not in bytes(twin)
        assert_twins(data)


@needs_isal
@pytest.mark.parametrize(
    ("height", "width"),
    [(1, 65_533), (255, 256), (256, 255), (1, 65_536), (510, 256), (2, 65_535), (3, 43_690)],
)
def test_images_at_the_edges_of_stored_blocks_come_back(height: int, width: int) -> None:
    pixels = RNG.integers(0, 256, (height, width, 1)).astype(np.uint8)
    data = with_idats(zlib.compress(filtered(pixels[..., 0], 1)), pixels=pixels, colour=0)
    assert is_stored(data)
    found = decoded(data, stored=True)
    assert found is not None
    np.testing.assert_array_equal(found, pixels)


@needs_isal
def test_every_way_to_deflate_is_inflated() -> None:
    strategies = [
        zlib.Z_DEFAULT_STRATEGY,
        zlib.Z_FILTERED,
        zlib.Z_HUFFMAN_ONLY,
        zlib.Z_RLE,
        zlib.Z_FIXED,
    ]
    smooth = raw_rows(NOISE // 64, 2, 8)
    for level, strategy, rows in itertools.product((0, 1, 6, 9), strategies, (NOISE_ROWS, smooth)):
        packer = zlib.compressobj(level, strategy=strategy)
        parts = [
            packer.compress(rows[:3000]),
            packer.flush(zlib.Z_SYNC_FLUSH),
            packer.compress(rows[3000:]),
            packer.flush(zlib.Z_FULL_FLUSH),
            packer.flush(),
        ]
        for data in (with_idats(*parts), with_idats(b"".join(parts))):
            assert is_stored(data)
            assert_twins(data, (level, strategy))


@needs_isal
def test_chunks_may_be_empty_or_cut_the_stream_anywhere() -> None:
    deflated = zlib.compress(NOISE_ROWS)
    cuts = {
        "empty first": (b"", deflated),
        "empty last": (deflated, b""),
        "empty everywhere": (b"", b"", deflated[:9], b"", b"", deflated[9:], b"", b""),
        "single bytes": tuple(bytes([byte]) for byte in deflated),
        "bytes after the end": (deflated + b"garbage",),
        "one byte after the end": (deflated + b"x",),
        "chunk after the end": (deflated, b"garbage"),
        **{f"cut {at}": (deflated[:at], deflated[at:]) for at in (1, 2, 3, 70, -5, -4, -3, -1)},
    }
    for name, parts in cuts.items():
        data = with_idats(*parts)
        assert is_stored(data), name
        assert_twins(data, name)


@needs_isal
def test_long_runs_are_inflated_from_few_bytes() -> None:
    pixels = np.zeros((700, 900, 3), int)
    deflated = zlib.compress(bytes(700 * (900 * 3 + 1)), 9)
    for parts in [(deflated,), tuple(bytes([byte]) for byte in deflated)]:
        data = with_idats(*parts, pixels=pixels)
        assert is_stored(data)
        found = decoded(data, stored=True)
        assert found is not None
        assert found.shape == (700, 900, 3)
        assert not found.any()


# ----------------------------------------------------------------- what is left to libpng


def with_window(deflated: bytes, bits: int) -> bytes:
    """The same stream, its header claiming another window."""
    first = (bits - 8) << 4 | 8
    return bytes([first, 31 - (first << 8) % 31]) + deflated[2:]


@needs_isal
def test_interlaced_images_and_small_windows_are_left_to_libpng() -> None:
    interlaced = sample(2, 8, interlace=True)
    assert not is_stored(interlaced)
    assert_twins(interlaced)
    for bits in range(9, 15):
        packer = zlib.compressobj(9, zlib.DEFLATED, bits)
        data = with_idats(packer.compress(NOISE_ROWS) + packer.flush())
        assert not is_stored(data)
        assert_twins(data)
        assert decoded(data, stored=True) is not None


@needs_isal
def test_a_stream_that_reaches_back_further_than_its_window_is_refused() -> None:
    """ISA-L alone would inflate it; TensorFlow's libpng does not."""
    half = RNG.integers(0, 256, (20, 400, 3))
    pixels = np.concatenate([half, half])
    rows = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in pixels)
    deflated = zlib.compress(rows, 9)
    assert decoded(with_idats(deflated, pixels=pixels), stored=True) is not None
    assert decoded(with_idats(with_window(deflated, 12), pixels=pixels), stored=True) is None


@needs_isal
def test_more_data_than_the_image_is_left_to_libpng() -> None:
    for more in (b"x", bytes(10), RNG.bytes(200_000)):
        deflated = zlib.compress(NOISE_ROWS + more)
        assert not is_stored(with_idats(deflated))
        assert_twins(with_idats(deflated), len(more))
        assert decoded(with_idats(deflated), stored=True) is not None
        assert_twins(with_idats(deflated[:-6]), len(more))


@needs_isal
def test_without_isal_libpng_inflates_the_same_pixels(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(sample(2, 8, extra=chunk(b"tEXt", b"a\0b")))
    program = (
        "import sys; sys.modules['isal'] = None\n"
        "from pathlib import Path\n"
        "from headrace.decoding.frame import decode_image\n"
        "from headrace.decoding.png import HAS_ISAL\n"
        "assert not HAS_ISAL\n"
        "folder = Path(sys.argv[1])\n"
        "pixels = decode_image((folder / 'image.png').read_bytes())\n"
        "(folder / 'pixels').write_bytes(pixels.tobytes())\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    found = decoded((tmp_path / "image.png").read_bytes(), stored=True)
    assert found is not None
    assert (tmp_path / "pixels").read_bytes() == found.tobytes()


# ----------------------------------------------------------------- damage and limits


@needs_isal
def test_damaged_streams_are_refused_with_the_reason_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    deflated = zlib.compress(NOISE_ROWS)
    packer = zlib.compressobj(zdict=NOISE_ROWS[:300])
    size = f"{len(NOISE_ROWS):,}"
    damaged = {
        f"after {len(NOISE_ROWS) - 1:,} of {size} bytes": [zlib.compress(NOISE_ROWS[:-1])],
        f"after 0 of {size} bytes": [zlib.compress(b"")],
        f"after {size} of {size} bytes": [deflated[:-cut] for cut in (1, 2, 3, 4)],
        "checksum": [
            deflated[:-4] + bytes(4),
            deflated[:-1] + bytes([deflated[-1] ^ 1]),
            deflated[:-4] + bytes([deflated[-4] ^ 0x80]) + deflated[-3:],
            b"\x78" + bytes([deflated[1] ^ 1]) + deflated[2:],
        ],
        "Dictionary": [packer.compress(NOISE_ROWS) + packer.flush()],
        "": [
            *(deflated[:at] for at in (100, 101, len(deflated) // 2)),
            deflated[:60] + b"\xff" * 20 + deflated[80:],
            b"\x78\x01\x07" + bytes(100),
            b"\x78\x01" + b"\xff" * 100,
        ],
    }
    for reason, streams in damaged.items():
        for stream in streams:
            for parts in ((stream,), (stream[:50], b"", stream[50:])):
                data = with_idats(*parts)
                with pytest.raises(ImageError) as caught:
                    decode_png(data, read_header(data))
                assert reason in str(caught.value)
                assert caught.value.remedy
    assert capfd.readouterr() == ("", "")


@needs_isal
def test_a_stream_cut_anywhere_is_refused() -> None:
    pixels = RNG.integers(0, 4, (9, 30, 3))
    deflated = zlib.compress(raw_rows(pixels, 2, 8))
    for length in range(1, len(deflated)):
        assert decoded(with_idats(deflated[:length], pixels=pixels), stored=True) is None


STREAMS = {
    "noise": zlib.compress(NOISE_ROWS),
    "smooth": zlib.compress(raw_rows(NOISE // 64, 2, 8)),
    "fixed": (lambda packer: packer.compress(NOISE_ROWS) + packer.flush())(
        zlib.compressobj(strategy=zlib.Z_FIXED)
    ),
    "stored": zlib.compress(NOISE_ROWS, 0),
    "longer": zlib.compress(NOISE_ROWS + bytes(100)),
}


@needs_isal
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(STREAMS)),
    where=st.integers(0, 1 << 30),
    patch=st.binary(max_size=6),
    skip=st.integers(0, 6),
    right=st.booleans(),
    cut=st.integers(1, 1 << 30),
)
def test_a_mutated_stream_gives_the_pixels_of_the_plain_twin_or_an_image_error(
    kind: str, where: int, patch: bytes, skip: int, right: bool, cut: int
) -> None:
    """Also when its checksum is that of the mutated data, as a faulty encoder writes it.

    Where the twin refuses, as it does a code for distances that is incomplete though never used,
    the checksum has confirmed the pixels of the stream before its mutation.
    """
    stream = STREAMS[kind]
    at = where % len(stream)
    mutated = stream[:at] + patch + stream[at + skip :]
    if right:
        inflater = zlib.decompressobj(-15)
        try:
            rows = inflater.decompress(mutated[2:], 10 * len(NOISE_ROWS))
        except zlib.error:
            rows = b""
        mutated = mutated[:-4] + zlib.adler32(rows).to_bytes(4, "big")
    cut %= len(mutated) + 1
    data = with_idats(mutated[:cut], mutated[cut:])
    stored = decoded(data, stored=True)
    if stored is not None:
        plain = decoded(data, stored=False)
        if plain is None:
            plain = decoded(with_idats(stream), stored=False)
        assert plain is not None
        np.testing.assert_array_equal(stored, plain)


@needs_isal
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([b"", b"\x78\x01", b"\x78\xda"]), st.binary(max_size=300))
def test_random_bytes_for_a_stream_are_refused(start: bytes, stream: bytes) -> None:
    data = with_idats(start + stream)
    assert decoded(data, stored=True) is None


@needs_isal
def test_a_stream_that_would_fill_the_memory_is_inflated_no_further_than_the_image() -> None:
    bomb = with_idats(zlib.compress(NOISE_ROWS + bytes(1 << 28), 1))
    header = read_header(bomb)
    clean = clean_png(bomb, header)
    room = np.empty(stored_bytes(header), np.uint8)
    tracemalloc.start()
    try:
        kept = store_pixels(clean, header, lambda size: room[:size])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept is bomb
    assert peak < INFLATER_BYTES


@needs_isal
def test_nothing_is_written_outside_the_room_whose_size_follows_from_the_header() -> None:
    for (colour, bits), shape in itertools.product(KINDS, [(1, 1), (13, 21), (150, 190)]):
        for transparent in (False, True) if colour in (0, 2, 3) else (False,):
            data = sample(colour, bits, shape, transparent)
            header = read_header(data)
            sizes: list[int] = []
            memory = np.full(stored_bytes(header) + 128, 77, np.uint8)

            def room(
                size: int, memory: npt.NDArray[np.uint8] = memory, sizes: list[int] = sizes
            ) -> npt.NDArray[np.uint8]:
                sizes.append(size)
                return memory[64 : 64 + size]

            expected = decoded(data, stored=False)
            assert expected is not None
            np.testing.assert_array_equal(decode_png(data, header, room=room), expected)
            assert sizes[0] <= stored_bytes(header)
            assert len(sizes) == 1
            assert (memory[:64] == 77).all()
            assert (memory[64 + sizes[0] :] == 77).all()


@needs_isal
def test_the_stored_png_is_one_that_any_decoder_reads() -> None:
    for colour, bits in KINDS:
        data = sample(colour, bits, (150, 190))
        header = read_header(data)
        stored = bytes(store_pixels(clean_png(data, header), header, new_room))
        again = clean_png(stored, read_header(stored))  # checks every CRC
        rows = zlib.decompress(b"".join(again.packed))
        assert rows == zlib.decompress(b"".join(clean_png(data, header).packed))
        found = cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_UNCHANGED)
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(found, expected)
