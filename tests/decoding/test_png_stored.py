"""Pixels inflated by ISA-L: those that libpng inflates, within limits, and no damage let in."""

from __future__ import annotations

import doctest
import itertools
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decoding.png_writer import (
    KINDS,
    NAMES,
    SIGNATURE,
    chunk,
    filtered,
    ihdr,
    raw_rows,
    sample,
)

from headrace.decoding import png_stored as module
from headrace.decoding.header import read_header
from headrace.decoding.png import decode_png
from headrace.decoding.png_chunks import clean_png
from headrace.decoding.png_stored import INFLATER_BYTES, new_room, store_pixels, stored_bytes
from headrace.errors import ImageError

pytestmark = pytest.mark.skipif(not module.HAS_ISAL, reason="no wheel of isal for this platform")

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (40, 60, 3))
ROWS = raw_rows(PIXELS, 2, 8)


def with_idats(*parts: bytes, pixels: npt.NDArray[Any] = PIXELS, colour: int = 2) -> bytes:
    chunks = (chunk(b"IDAT", part) for part in parts)
    return SIGNATURE + ihdr(pixels, colour, 8) + b"".join(chunks) + chunk(b"IEND", b"")


def decoded(data: bytes, *, stored: bool, **asked: Any) -> npt.NDArray[Any] | None:
    try:
        return decode_png(data, read_header(data), stored=stored, **asked)
    except ImageError:
        return None


def is_stored(data: bytes) -> bool:
    header = read_header(data)
    return isinstance(store_pixels(clean_png(data, header), header, new_room), np.ndarray)


def assert_twins(data: bytes, name: Any = "") -> None:
    """Stored and plain give the same for whatever is asked."""
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


def test_every_way_to_deflate_is_inflated() -> None:
    strategies = [
        zlib.Z_DEFAULT_STRATEGY,
        zlib.Z_FILTERED,
        zlib.Z_HUFFMAN_ONLY,
        zlib.Z_RLE,
        zlib.Z_FIXED,
    ]
    smooth = raw_rows(PIXELS // 64, 2, 8)
    for level, strategy, rows in itertools.product((0, 1, 6, 9), strategies, (ROWS, smooth)):
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


def test_chunks_may_be_empty_or_cut_the_stream_anywhere() -> None:
    deflated = zlib.compress(ROWS)
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


def test_interlaced_images_and_small_windows_are_left_to_libpng() -> None:
    interlaced = sample(2, 8, interlace=True)
    assert not is_stored(interlaced)
    assert_twins(interlaced)
    for bits in range(9, 15):
        packer = zlib.compressobj(9, zlib.DEFLATED, bits)
        data = with_idats(packer.compress(ROWS) + packer.flush())
        assert not is_stored(data)
        assert_twins(data)
        assert decoded(data, stored=True) is not None


def test_a_stream_that_reaches_back_further_than_its_window_is_refused() -> None:
    """ISA-L alone would inflate it; TensorFlow's libpng does not."""
    half = RNG.integers(0, 256, (20, 400, 3))
    pixels = np.concatenate([half, half])
    rows = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in pixels)
    deflated = zlib.compress(rows, 9)
    assert decoded(with_idats(deflated, pixels=pixels), stored=True) is not None
    assert decoded(with_idats(with_window(deflated, 12), pixels=pixels), stored=True) is None


def test_more_data_than_the_image_are_judged_by_libpng() -> None:
    for more in (b"x", bytes(10), RNG.bytes(200_000)):
        deflated = zlib.compress(ROWS + more)
        assert not is_stored(with_idats(deflated))
        assert_twins(with_idats(deflated), len(more))
        assert decoded(with_idats(deflated), stored=True) is not None
        assert_twins(with_idats(deflated[:-6]), len(more))


def test_without_isal_libpng_inflates_the_same_pixels(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(sample(2, 8, extra=chunk(b"tEXt", b"a\0b")))
    program = (
        "import sys; sys.modules['isal'] = None\n"
        "from pathlib import Path\n"
        "from headrace.decoding.image import decode_image\n"
        "from headrace.decoding.png_stored import HAS_ISAL\n"
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


def test_damaged_streams_are_refused_with_the_reason_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    deflated = zlib.compress(ROWS)
    packer = zlib.compressobj(zdict=ROWS[:300])
    size = f"{len(ROWS):,}"
    damaged = {
        f"end after {len(ROWS) - 1:,} of {size} bytes": [zlib.compress(ROWS[:-1])],
        f"end after 0 of {size} bytes": [zlib.compress(b"")],
        f"end after {size} of {size} bytes, or in the checksum": [
            deflated[:-cut] for cut in (1, 2, 3, 4)
        ],
        "checksum": [
            deflated[:-4] + bytes(4),
            deflated[:-1] + bytes([deflated[-1] ^ 1]),
            deflated[:-4] + bytes([deflated[-4] ^ 0x80]) + deflated[-3:],
            b"\x78" + bytes([deflated[1] ^ 1]) + deflated[2:],
        ],
        "Dictionary": [packer.compress(ROWS) + packer.flush()],
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
                assert "compressed data do not give the image" in str(caught.value)
                assert "Restore the file" in str(caught.value)
                assert reason in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_stream_cut_anywhere_is_refused() -> None:
    pixels = RNG.integers(0, 4, (9, 30, 3))
    deflated = zlib.compress(raw_rows(pixels, 2, 8))
    for length in range(1, len(deflated)):
        assert decoded(with_idats(deflated[:length], pixels=pixels), stored=True) is None


STREAMS = {
    "noise": zlib.compress(ROWS),
    "smooth": zlib.compress(raw_rows(PIXELS // 64, 2, 8)),
    "fixed": (lambda packer: packer.compress(ROWS) + packer.flush())(
        zlib.compressobj(strategy=zlib.Z_FIXED)
    ),
    "stored": zlib.compress(ROWS, 0),
    "longer": zlib.compress(ROWS + bytes(100)),
}


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
    """Also when its checksum is that of the mutated data, as an encoder with a fault writes it.

    Where the twin refuses, as it does a code for distances that is incomplete though never used,
    the checksum has vouched for the pixels of the stream before its mutation.
    """
    stream = STREAMS[kind]
    at = where % len(stream)
    mutated = stream[:at] + patch + stream[at + skip :]
    if right:
        inflater = zlib.decompressobj(-15)
        try:
            rows = inflater.decompress(mutated[2:], 10 * len(ROWS))
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


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([b"", b"\x78\x01", b"\x78\xda"]), st.binary(max_size=300))
def test_random_bytes_for_a_stream_are_refused(start: bytes, stream: bytes) -> None:
    data = with_idats(start + stream)
    assert decoded(data, stored=True) is None


def test_a_stream_that_would_fill_the_memory_is_inflated_no_further_than_the_image() -> None:
    bomb = with_idats(zlib.compress(ROWS + bytes(1 << 28), 1))
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


def test_nothing_is_written_outside_of_the_room_and_the_header_says_how_much_it_is() -> None:
    for (colour, bits), shape in itertools.product(KINDS, [(1, 1), (13, 21), (150, 190)]):
        for transparent in (False, True) if colour in (0, 2, 3) else (False,):
            data = sample(colour, bits, shape, transparent)
            header = read_header(data)
            asked: list[int] = []
            memory = np.full(stored_bytes(header) + 128, 77, np.uint8)

            def room(
                size: int, memory: npt.NDArray[np.uint8] = memory, asked: list[int] = asked
            ) -> npt.NDArray[np.uint8]:
                asked.append(size)
                return memory[64 : 64 + size]

            expected = decoded(data, stored=False)
            assert expected is not None
            np.testing.assert_array_equal(decode_png(data, header, room=room), expected)
            assert asked[0] <= stored_bytes(header)
            assert len(asked) == 1
            assert (memory[:64] == 77).all()
            assert (memory[64 + asked[0] :] == 77).all()


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


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0
