"""Pictures and the numbers on them."""

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.recipes.laq.buckets import Buckets  # noqa: E402
from headrace.recipes.laq.canvas import PAPER, palette, save_png  # noqa: E402
from headrace.recipes.laq.model import LaqOutput  # noqa: E402
from headrace.recipes.laq.pictures import (  # noqa: E402
    action_scatter,
    as_image,
    codebook_histogram,
    reconstruction_grid,
    sequence_histogram,
    transfer_grid,
)
from headrace.recipes.laq.usage import code_usage, sequence_usage  # noqa: E402

RNG = np.random.default_rng(0)


def pixels_of(image, colour):
    return int((image == np.array(colour, np.uint8)).all(-1).sum())


def contains(image, part):
    """Whether the picture shows the part somewhere, pixel by pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(image, part.shape)
    return bool((windows == part).all(axis=(-3, -2, -1)).any())


def test_a_grid_shows_both_frames_and_the_reconstruction_of_every_sample():
    frames = RNG.integers(0, 256, (3, 3, 2, 24, 20), np.uint8)
    recon = RNG.random((3, 3, 24, 20), np.float32) * 1.4 - 0.2  # beyond black and white
    image = reconstruction_grid(frames, recon, ["bridge ep 3", "kuka", "x"])
    assert image.dtype == np.uint8
    for i in range(3):
        for frame in (frames[i, :, 0], frames[i, :, 1], recon[i]):
            assert contains(image, as_image(frame))
    with_titles, without = image.shape[0], reconstruction_grid(frames, recon).shape[0]
    assert with_titles > without


def test_a_transfer_shows_donor_and_receiver():
    frames, donors = RNG.integers(0, 256, (2, 2, 3, 2, 24, 24), np.uint8)
    moved = RNG.random((2, 3, 24, 24), np.float32)
    image = transfer_grid(frames, donors, moved)
    for part in (donors[0, :, 0], donors[1, :, 1], frames[1, :, 0], moved[0]):
        assert contains(image, as_image(part))


def test_usage_of_codes_and_sequences_is_counted():
    indices = np.array([[0, 1], [0, 1], [0, 3], [2, 1]])
    usage = code_usage(indices, 4)
    assert usage.counts.tolist() == [3, 3, 1, 1]
    assert (usage.used, usage.utilisation) == (4, 1.0)
    assert usage.entropy == pytest.approx(2 * 3 / 8 * np.log2(8 / 3) + 2 / 8 * 3)
    sequences = sequence_usage(indices, 4)
    assert sequences.sequences.tolist() == [[0, 1], [0, 3], [2, 1]]
    assert sequences.counts.tolist() == [2, 1, 1]
    assert (sequences.unique, sequences.possible, sequences.total) == (3, 16, 4)
    assert sequences.entropy == pytest.approx(1.5)
    assert code_usage(np.zeros((5, 4)), 8).entropy == 0


def test_bars_are_as_tall_as_the_counts():
    image = codebook_histogram(np.array([[0] * 6 + [2] * 3 + [5]]), 8)
    colours = palette(8)
    areas = [pixels_of(image, colour) for colour in colours]
    assert areas[2] == pytest.approx(areas[0] / 2, rel=0.03)
    assert areas[5] == pytest.approx(areas[0] / 6, rel=0.05)
    assert areas[1] == 0


def test_sequences_are_drawn_most_used_first_and_only_so_many():
    indices = np.array([[1, 1]] * 4 + [[6, 0]] * 8)
    image = sequence_histogram(indices, 8)
    first, second = palette(8)[6], palette(8)[1]
    assert pixels_of(image, second) == pytest.approx(pixels_of(image, first) / 2, rel=0.03)
    left = [np.flatnonzero((image == np.array(c)).all(-1).any(0)).min() for c in (first, second)]
    assert left[0] < left[1]
    many = sequence_histogram(RNG.integers(0, 8, (500, 4)), 8)
    assert many.shape == image.shape


def test_actions_are_dots_in_the_colour_of_their_first_code():
    actions = np.array([[-1.0, -1.0, 9.0], [1.0, 1.0, 9.0]] * 10)
    image = action_scatter(actions, np.array([1, 4] * 10), 8)
    plot = image[:, :470]  # without the legend
    rows, columns = np.nonzero((plot == np.array(palette(8)[1])).all(-1))
    others = np.nonzero((plot == np.array(palette(8)[4])).all(-1))
    assert rows.mean() > others[0].mean()  # y points up
    assert columns.mean() < others[1].mean()


def test_an_empty_scatter_and_still_actions_are_pictures_too():
    assert action_scatter(np.zeros((0, 7)), np.zeros(0, int), 8).shape[-1] == 3
    assert action_scatter(np.zeros((5, 7)), np.zeros(5, int), 8).shape[-1] == 3


def test_colours_of_a_palette_differ_from_each_other_and_from_the_paper():
    colours = palette(16)
    assert len({*colours, PAPER}) == 17


def test_a_picture_is_saved_as_it_is(tmp_path):
    image = RNG.integers(0, 256, (9, 7, 3), np.uint8)
    path = save_png(image, tmp_path / "new" / "a.png")
    assert np.array_equal(cv2.imread(str(path))[..., ::-1], image)


def batch_of(datasets, **more):
    count = len(datasets)
    frames = torch.randint(0, 256, (count, 3, 2, 8, 8), dtype=torch.uint8)
    return {"frames": frames, "dataset": torch.tensor(datasets), "names": ("a", "b", "c"), **more}


def output_of(count):
    indices = torch.randint(0, 8, (count, 4))
    none = torch.zeros(())
    return LaqOutput(none, {}, indices, none, none, 4, torch.rand(count, 4, 48))


def test_buckets_keep_the_first_samples_of_every_dataset_and_no_more():
    buckets = Buckets(pictures=2, points=3)
    first, out = batch_of([0, 0, 0, 1], action=torch.randn(4, 7)), output_of(4)
    buckets.add(first, out)
    buckets.add(batch_of([0, 0, 2], action=torch.randn(3, 7)), output_of(3))
    kept = dict(buckets.items())
    assert {name: bucket.seen for name, bucket in kept.items()} == {"a": 5, "b": 1, "c": 1}
    assert {n: len(b.frames) for n, b in kept.items()} == {"a": 2, "b": 1, "c": 1}
    assert {n: len(b.codes) for n, b in kept.items()} == {"a": 3, "b": 1, "c": 1}
    assert np.array_equal(kept["a"].frames[1], first["frames"][1].numpy())
    assert np.array_equal(np.moveaxis(kept["b"].recon[0], 0, -1), as_image(out.recon[3].numpy()))
    assert kept["a"].indices().tolist() == out.indices[:3].tolist()
    assert len(kept["a"].actions) == 3
    buckets.clear()
    assert len(buckets) == 0


def test_buckets_own_what_they_keep():
    """A batch is lent memory: what stays must not change with it."""
    buckets, batch = Buckets(), batch_of([0])
    buckets.add(batch, output_of(1))
    before = buckets.items()[0][1].frames[0].copy()
    batch["frames"].zero_()
    assert np.array_equal(buckets.items()[0][1].frames[0], before)


def test_a_batch_without_dataset_numbers_has_one_bucket_and_too_many_datasets_are_left_out():
    buckets = Buckets(datasets=1)
    batch = batch_of([0, 1])
    buckets.add(batch, output_of(2))
    assert [name for name, _ in buckets.items()] == ["a"]
    buckets = Buckets()
    del batch["dataset"]
    buckets.add(batch, output_of(2))
    assert [name for name, _ in buckets.items()] == ["all"]


def test_pictures_are_kept_within_so_many_bytes_shared_by_the_datasets():
    sample = 3 * 2 * 8 * 8 + 3 * 8 * 8
    buckets = Buckets(pictures=8, bytes=7 * sample)  # two for each of three datasets
    for _ in range(3):
        buckets.add(batch_of([0, 0, 1, 2]), output_of(4))
    assert {name: len(bucket.frames) for name, bucket in buckets.items()} == {
        "a": 2,
        "b": 2,
        "c": 2,
    }
    assert buckets.held == 6 * sample
    assert [len(bucket.codes) for _, bucket in buckets.items()] == [6, 3, 3]
