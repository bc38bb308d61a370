"""The PNG encoder, against OpenCV's decoder."""

import cv2
import numpy as np
import pytest

from headrace.testing.png import encode_png


def read(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 1), (3, 5), (4, 4), (5, 2), (63, 65)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_pixel_survives(size, channels, dtype):
    rng = np.random.default_rng(channels)
    image = rng.integers(0, np.iinfo(dtype).max + 1, (*size, channels)).astype(dtype)
    pixels = read(encode_png(image))
    if channels > 1:
        pixels = pixels[..., [2, 1, 0, 3][:channels]]
    np.testing.assert_array_equal(pixels.reshape(image.shape), image)
    assert pixels.dtype == dtype


def test_a_smooth_picture_packs_well():
    ramp = np.add.outer(np.arange(256), np.arange(256)).astype(np.uint8)
    assert len(encode_png(ramp)) < ramp.size / 4
