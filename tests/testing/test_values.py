"""The path of the object, and the PNG encoder against OpenCV's decoder."""

import cv2
import numpy as np
import pytest

from headrace.testing.values import HIGH, LOW, displacements, draw_path, encode_png, waypoints


@pytest.fixture(params=[1, 2, 10, 35, 300])
def path(request):
    return draw_path(np.random.default_rng(request.param), request.param)


def test_the_object_stays_between_label_and_tag(path):
    assert (path >= LOW.astype(np.float32)).all()
    assert (path <= HIGH.astype(np.float32)).all()


def test_displacements_between_any_two_steps_add_up(path):
    moves = displacements(path)
    ends = np.cumsum(moves, axis=0, dtype=np.float64) - moves
    np.testing.assert_allclose(path[0] + ends, path, atol=1e-6)
    assert not moves[-1].any()


def test_the_first_waypoint_is_the_displacement_and_later_ones_reach_further(path):
    ahead = waypoints(path, 10)
    np.testing.assert_array_equal(ahead[:, 0], displacements(path))
    last = len(path) - 1
    for t in range(len(path)):
        np.testing.assert_array_equal(ahead[t, 9], path[min(t + 10, last)] - path[t])


def test_it_moves_visibly_and_smoothly():
    path = draw_path(np.random.default_rng(0), 60)
    speed = np.linalg.norm(displacements(path)[:, :2], axis=1)
    assert np.linalg.norm(path[:, :2].max(0) - path[:, :2].min(0)) > 0.25
    assert speed.max() < 0.1
    assert np.abs(np.diff(speed[:-1])).max() < 0.02


def test_an_episode_without_steps_has_no_path():
    assert draw_path(np.random.default_rng(0), 0).shape == (0, 3)


# -- PNG -----------------------------------------------------------------------------------------


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
