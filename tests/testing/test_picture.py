"""Pictures say where they are from, to a machine too."""

import cv2
import numpy as np
import pytest
import simplejpeg

from headrace.testing import Tag, find_object, read_tag
from headrace.testing.picture import DepthScene, Scene, View, draw_tag

PLACE = np.array([0.41, 0.63, 0.1], np.float32)
SIZES = [(64, 64), (84, 84), (128, 128), (128, 256), (171, 213), (480, 640), (512, 640)]


def picture(height, width, channels=3, step=7, episode=3, seed=0, camera=1, place=PLACE):
    view = View("bridge", 1, camera, "image", height, width, channels)
    return Scene(view, seed, episode, (0.5, 0.5)).frame(step, place)


def through_jpeg(image, quality):
    grey = image.shape[2] == 1
    colours = {"colorspace": "GRAY", "colorsubsampling": "Gray"} if grey else {}
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, **colours)
    return simplejpeg.decode_jpeg(data, colorspace="GRAY" if grey else "RGB")


@pytest.mark.parametrize("quality", [60, 90])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_the_tag_survives_jpeg_at_every_size(size, channels, quality):
    image = through_jpeg(picture(*size, channels=channels), quality)
    assert read_tag(image) == Tag(dataset=1, episode=3, step=7, camera=1)


@pytest.mark.parametrize("size", SIZES[2:])
def test_tag_and_object_survive_resizing_without_the_aspect_ratio(size):
    image = through_jpeg(picture(*size), 90)
    small = cv2.resize(image, (224, 224), interpolation=cv2.INTER_LINEAR)
    assert read_tag(small) == Tag(dataset=1, episode=3, step=7, camera=1)
    assert find_object(small) == pytest.approx(PLACE[:2], abs=0.015)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [(0.12, 0.4, 0), (0.88, 0.8, 0.3), (0.5, 0.5, 0.2)])
def test_the_object_is_found_where_it_was_drawn(size, place):
    image = through_jpeg(picture(*size, place=np.array(place, np.float32)), 90)
    assert find_object(image) == pytest.approx(place[:2], abs=0.01)


def test_a_plain_scene_changes_where_the_object_moves_and_nowhere_else():
    view = View("bridge", 1, 1, "image", 128, 128, plain=True)
    scene = Scene(view, 0, 3, (0.5, 0.5))
    here, there = np.array([0.2, 0.45, 0], np.float32), np.array([0.8, 0.7, 0], np.float32)
    first, later, last = scene.frame(0, here), scene.frame(7, here), scene.frame(8, there)
    assert np.array_equal(first, later)  # nothing counts, flickers or rustles
    with pytest.raises(ValueError, match="no tag"):
        read_tag(first)
    for frame, place in ((first, here), (last, there)):
        assert find_object(through_jpeg(frame, 90)) == pytest.approx(place[:2], abs=0.01)
    default = picture(128, 128, place=here)
    magenta = [((x[..., 0] > 200) & (x[..., 1] < 60)).sum() for x in (default, first)]
    assert magenta[1] > 2.5 * magenta[0]


def test_a_tag_holds_a_million_episodes_and_ten_thousand_steps():
    image = np.zeros((64, 64, 3), np.uint8)
    largest = Tag(dataset=255, episode=2**24 - 1, step=2**16 - 1, camera=15)
    draw_tag(image, largest)
    assert read_tag(image) == largest
    with pytest.raises(ValueError, match="24 bits"):
        draw_tag(image, Tag(0, 2**24, 0, 0))


def test_a_picture_without_tag_or_object_is_refused():
    grass = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    grass[..., 1] = 255
    with pytest.raises(ValueError, match="no tag"):
        read_tag(grass)
    with pytest.raises(ValueError, match="no object"):
        find_object(grass)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_depth_carries_the_tag_and_shows_the_object_nearer(dtype):
    view = View("bridge", 1, 2, "depth", 120, 160)
    depth = DepthScene(view, 0, 3, dtype).frame(5, PLACE)
    assert depth.dtype == dtype
    assert read_tag(depth) == Tag(dataset=1, episode=3, step=5, camera=2)
    x, y = round(PLACE[0] * 160), round(PLACE[1] * 120)
    assert depth[y, x] < 0.95 * depth[y, x + 20]


def test_datasets_episodes_seeds_cameras_and_steps_look_different():
    first = picture(120, 160)
    body = slice(40, 100)
    for other in (
        picture(120, 160, episode=4),
        picture(120, 160, seed=1),
        picture(120, 160, camera=2),
        picture(120, 160, step=8),
    ):
        assert (first[body] != other[body]).mean() > 0.2
    np.testing.assert_array_equal(first, picture(120, 160))
