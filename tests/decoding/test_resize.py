"""Resized pixels equal TensorFlow's to within a level, and only their place is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decoding.resize import (
    Filter,
    check_filter,
    resize_into,
    use_one_thread_per_call,
    workspace_bytes,
)
from headrace.errors import UsageError
from headrace.testing.oxe29 import datasets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

REGISTRY = sorted({c.shape[:2] for d in datasets().values() for c in d.cameras.values()})
ODD = [(1, 1), (1, 7), (9, 1), (2, 2), (37, 53), (84, 84), (300, 300), (719, 3)]
SIZES = sorted({*REGISTRY, *ODD})
TARGETS = [(256, 256), (224, 224), (64, 64), (33, 47), (257, 255), (1, 1)]
FILTERS: list[Filter] = ["bilinear", "area", "nearest"]


def noise(height: int, width: int, channels: int = 3, *, seed: int = 0) -> npt.NDArray[np.uint8]:
    """The hardest image: neighbours anywhere between 0 and 255, and often at the ends."""
    rng = np.random.default_rng([seed, height, width])
    wide = rng.integers(-128, 384, (height, width, channels))
    return np.clip(wide, 0, 255).astype(np.uint8)


def tensorflow(pixels: npt.NDArray[Any], size: tuple[int, int], method: str) -> npt.NDArray[Any]:
    import tensorflow as tf

    resized: npt.NDArray[Any] = tf.image.resize(pixels, size, method=method).numpy()
    return resized


def resized(
    pixels: npt.NDArray[np.uint8], size: tuple[int, int], filter: Filter
) -> npt.NDArray[np.uint8]:
    out = np.full((*size, pixels.shape[2]), 77, np.uint8)
    resize_into(pixels, out, filter)
    return out


def levels_apart(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    return int(np.abs(np.rint(a).astype(int) - np.rint(b).astype(int)).max())


# ----------------------------------------------------------------- against TensorFlow


def test_the_registry_has_sizes_that_grow_that_shrink_and_that_do_both() -> None:
    signs = {(h < 256, w < 256) for h, w in REGISTRY}
    assert signs == {(True, True), (True, False), (False, False)}


@pytest.mark.tfds
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_bilinear_is_tensorflows_to_within_a_level(size: tuple[int, int], channels: int) -> None:
    pixels = noise(*size, channels)
    for target in TARGETS:
        expected = tensorflow(pixels, target, "bilinear")
        assert levels_apart(resized(pixels, target, "bilinear"), expected) <= 1, target


@pytest.mark.tfds
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_nearest_is_tensorflows_exactly(size: tuple[int, int]) -> None:
    pixels = noise(*size)
    for target in TARGETS:
        expected = tensorflow(pixels, target, "nearest")
        assert np.array_equal(resized(pixels, target, "nearest"), expected), target


@pytest.mark.tfds
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_area_averages_what_shrinks_and_interpolates_what_grows(size: tuple[int, int]) -> None:
    pixels = noise(*size)
    for target in TARGETS:
        shrunk = min(size[0], target[0]), min(size[1], target[1])
        expected = tensorflow(pixels, shrunk, "area").astype(np.float32)
        expected = tensorflow(expected, target, "bilinear")
        assert levels_apart(resized(pixels, target, "area"), expected) <= 1, target


side = st.integers(1, 90)


@settings(max_examples=80, deadline=None)
@given(side, side, side, side, st.integers(0, 1 << 30))
def test_any_size_to_any_size_is_within_a_level_of_the_formula(
    h: int, w: int, to_h: int, to_w: int, seed: int
) -> None:
    """The formula itself, in double precision: TensorFlow is too slow to call this often."""

    def weights(source: int, target: int) -> npt.NDArray[np.float64]:
        centres = (np.arange(target) + 0.5) * source / target - 0.5
        low = np.floor(centres)
        matrix = np.zeros((target, source))
        for at, share in ((low, 1 - (centres - low)), (low + 1, centres - low)):
            np.add.at(matrix, (np.arange(target), np.clip(at, 0, source - 1).astype(int)), share)
        return matrix

    pixels = noise(h, w, seed=seed)
    expected = np.einsum("Yy,yxc,Xx->YXc", weights(h, to_h), pixels, weights(w, to_w))
    assert np.abs(resized(pixels, (to_h, to_w), "bilinear") - expected).max() < 1.0


@pytest.mark.parametrize("filter", FILTERS)
def test_the_same_size_is_a_copy(filter: Filter) -> None:
    pixels = noise(24, 32)
    assert np.array_equal(resized(pixels, (24, 32), filter), pixels)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("size", [(20, 90), (90, 20), (90, 90), (20, 20)], ids=str)
def test_grey_and_colour_are_resized_alike(filter: Filter, size: tuple[int, int]) -> None:
    pixels = noise(*size)
    together = resized(pixels, (40, 50), filter)
    for channel in range(3):
        alone = resized(np.ascontiguousarray(pixels[..., channel : channel + 1]), (40, 50), filter)
        assert np.array_equal(alone[..., 0], together[..., channel])


# ----------------------------------------------------------------- the caller's memory


@settings(max_examples=60, deadline=None)
@given(side, side, side, side, st.sampled_from(FILTERS), st.sampled_from([1, 3]))
def test_nothing_but_its_place_in_the_batch_is_written(
    h: int, w: int, to_h: int, to_w: int, filter: Filter, channels: int
) -> None:
    batch = np.full((3, 2, to_h, to_w, channels), 77, np.uint8)
    pixels = noise(h, w, channels)
    before = pixels.copy()
    resize_into(pixels, batch[1, 0], filter)
    assert np.array_equal(batch[1, 0], resized(pixels, (to_h, to_w), filter))
    batch[1, 0] = 77
    assert (batch == 77).all()
    assert np.array_equal(pixels, before)


def test_a_source_that_is_not_contiguous_is_read_as_it_is() -> None:
    pixels = noise(40, 60)
    for view in (pixels[::2, 5:], pixels[:, ::-1], pixels[..., ::-1]):
        for filter in FILTERS:
            expected = resized(np.ascontiguousarray(view), (16, 16), filter)
            assert np.array_equal(resized(view, (16, 16), filter), expected)


def test_workspace_is_what_the_filter_needs_beside_source_and_target() -> None:
    assert workspace_bytes((480, 640), (256, 256), 3, "bilinear") == 0
    assert workspace_bytes((480, 640), (256, 256), 3, "area") == 0
    assert workspace_bytes((180, 320), (256, 256), 3, "area") == 180 * 256 * 3
    assert workspace_bytes((320, 180), (256, 256), 1, "area") == 256 * 180
    assert workspace_bytes((180, 320), (256, 256), 3, "nearest") == 256 * 320 * 3
    assert workspace_bytes((256, 256), (256, 256), 3, "nearest") == 0


# ----------------------------------------------------------------- invalid requests

GOOD = np.zeros((4, 4, 3), np.uint8)
read_only = np.zeros((4, 4, 3), np.uint8)
read_only.flags.writeable = False


@pytest.mark.parametrize(
    ("pixels", "out"),
    [
        (GOOD, np.zeros((8, 8), np.uint8)),
        (GOOD, np.zeros((8, 8, 1), np.uint8)),
        (GOOD, np.zeros((8, 0, 3), np.uint8)),
        (GOOD, np.zeros((8, 8, 3), np.float32)),
        (GOOD, np.zeros((8, 8, 6), np.uint8)[..., ::2]),
        (GOOD, read_only),
        (np.zeros((4, 4, 4), np.uint8), np.zeros((8, 8, 4), np.uint8)),
        (np.zeros((4, 4, 3), np.uint16), np.zeros((8, 8, 3), np.uint8)),
        (np.zeros((0, 4, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)),
    ],
    ids=["2-d", "channels", "empty", "float", "strided", "read-only", "4", "uint16", "no source"],
)
def test_arrays_that_cannot_be_resized_are_refused_with_both_shapes(pixels: Any, out: Any) -> None:
    with pytest.raises(UsageError) as caught:
        resize_into(pixels, out)
    assert str(list(pixels.shape)) in str(caught.value)
    assert str(list(out.shape)) in str(caught.value)
    assert not out.any()


def test_an_unknown_filter_is_refused_with_the_known_ones() -> None:
    unknown: Any = "bicubic"
    for attempt in (lambda: check_filter(unknown), lambda: resize_into(GOOD, GOOD, unknown)):
        with pytest.raises(UsageError, match="'bicubic'.*bilinear, area, nearest"):
            attempt()


# ----------------------------------------------------------------- threads


def test_the_number_of_opencvs_threads_changes_no_pixel_and_can_be_restored() -> None:
    pixels = noise(480, 640)
    former = cv2.getNumThreads()
    try:
        cv2.setNumThreads(4)
        several = [resized(pixels, (700, 700), filter) for filter in FILTERS]
        assert use_one_thread_per_call() == 4
        assert cv2.getNumThreads() == 1
        one = [resized(pixels, (700, 700), filter) for filter in FILTERS]
    finally:
        cv2.setNumThreads(former)
    assert all(np.array_equal(a, b) for a, b in zip(several, one, strict=True))


def test_threads_that_fill_one_batch_do_not_disturb_each_other() -> None:
    images = [noise(60 + i, 90 - i, seed=i) for i in range(32)]
    batch = np.zeros((32, 48, 48, 3), np.uint8)
    for filter in FILTERS:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i, f=filter: resize_into(images[i], batch[i], f), range(32)))
        for place, image in zip(batch, images, strict=True):
            assert np.array_equal(place, resized(image, (48, 48), filter))
