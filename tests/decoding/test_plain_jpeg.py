"""Which JPEGs a device may decode: whole, baseline, of luma and chroma."""

import cv2
import numpy as np
import pytest
import simplejpeg

from headrace.decoding.plain_jpeg import is_plain_jpeg

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)


def jpeg(pixels=PIXELS, *options):
    return cv2.imencode(".jpg", pixels, list(options))[1].tobytes()


@pytest.mark.parametrize("chroma", ["444", "422", "420"])
def test_whole_baseline_jpegs_are_plain(chroma):
    data = simplejpeg.encode_jpeg(PIXELS, colorsubsampling=chroma)
    assert is_plain_jpeg(data)
    assert is_plain_jpeg(memoryview(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff\xd9",
        b"GIF89a",
        cv2.imencode(".png", PIXELS)[1].tobytes(),
        jpeg(PIXELS, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        jpeg(PIXELS[..., 0]),
        jpeg()[:-2],  # its end is missing
        jpeg()[: len(jpeg()) // 2] + b"\xff\xd9"[:1],
        jpeg()[:2] + b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00\x00" + jpeg()[2:],
    ],
    ids=["nothing", "empty", "gif", "png", "progressive", "grey", "no end", "half", "adobe"],
)
def test_all_else_stays_with_our_own_decoder(data):
    assert not is_plain_jpeg(data)


def test_a_size_that_so_few_bytes_cannot_hold_is_not_plain():
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    assert not is_plain_jpeg(bytes(data))


def test_any_cut_is_answered_and_never_raises():
    data = jpeg()
    for stop in range(0, len(data), 7):
        is_plain_jpeg(data[:stop] + b"\xff\xd9")
