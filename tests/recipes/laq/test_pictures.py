"""Pictures and the numbers on them."""

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from headrace.recipes.laq.model import LaqOutput  # noqa: E402
from headrace.recipes.laq.pictures import (  # noqa: E402
    action_dots,
    code_bars,
    code_usage,
    image_tiles,
    picture,
    save_png,
    sequence_bars,
    sequence_usage,
)
from headrace.recipes.laq.validation import SampleStore  # noqa: E402

RNG = np.random.default_rng(0)


def contains(image, part):
    """Whether the picture shows the part somewhere, pixel by pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(image, part.shape)
    return bool((windows == part).all(axis=(-3, -2, -1)).any())


def drawn(plot):
    """The axes of a plot that was drawn."""
    kept = []

    def keep(axes):
        plot(axes)
        kept.append(axes)

    assert picture("a title", plots=[keep]).std() > 1
    return kept[0]


def test_a_picture_shows_every_frame_enlarged_without_smoothing():
    columns = {name: RNG.integers(0, 256, (2, 3, 28, 28), np.uint8) for name in ("t", "t+k")}
    image = picture("step 3", columns)
    for frames in columns.values():
        for frame in frames:
            assert contains(image, np.moveaxis(frame, 0, -1).repeat(4, 0).repeat(4, 1))
    labelled = picture("step 3", columns, labels=["bridge_$1_$2", "kuka"])  # not mathematics
    assert labelled.shape[0] > image.shape[0]
    beside = picture("step 3", columns, [code_bars(np.zeros((3, 4)), 8)])
    assert beside.shape[1] > image.shape[1]


def test_large_frames_are_made_smaller():
    image = picture("", {"t": np.full((1, 3, 256, 128), 77, np.uint8)})
    assert image.shape[0] < 200
    assert contains(image, np.full((112, 56, 3), 77, np.uint8))


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
    axes = drawn(code_bars(np.array([[0] * 6 + [2] * 3 + [5]]), 8))
    assert [bar.get_height() for bar in axes.patches] == [6, 0, 3, 0, 0, 1, 0, 0]
    assert "3 / 8" in axes.get_title("left")


def test_sequences_are_drawn_most_used_first_and_only_so_many():
    axes = drawn(sequence_bars(np.array([[1, 1]] * 4 + [[6, 0]] * 8), 8))
    assert [bar.get_height() for bar in axes.patches] == [8, 4]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["60", "11"]
    assert len(drawn(sequence_bars(RNG.integers(0, 8, (500, 4)), 8)).patches) == 24


def test_actions_are_dots_by_their_first_code_and_wild_ones_lie_at_the_edge():
    actions = np.array([[-1.0, -1.0, 9.0], [1.0, 1.0, 9.0]] * 100 + [[0.0, 1e6, 9.0]])
    axes = drawn(action_dots(actions, np.array([1, 4] * 100 + [4]), 8))
    points = {dots.get_label(): dots.get_offsets() for dots in axes.collections}
    assert {code: len(dots) for code, dots in points.items()} == {"1": 100, "4": 101}
    assert points["1"].max() == -1
    assert points["4"][:, 1].max() == 1


@pytest.mark.parametrize("count", [0, 5])
def test_an_empty_scatter_and_still_actions_are_pictures_too(count):
    drawn(action_dots(np.zeros((count, 7)), np.zeros(count, int), 8))


def test_a_large_codebook_is_drawn_too():
    drawn(code_bars(RNG.integers(0, 200, (50, 4)), 200))


def test_tiles_are_rows_of_both_frames_and_the_prediction():
    frames = RNG.integers(0, 256, (2, 3, 2, 5, 5), np.uint8)
    recon = RNG.integers(0, 256, (2, 3, 5, 5), np.uint8)
    tiles = image_tiles(frames, recon)
    assert np.array_equal(tiles[5:, :5], np.moveaxis(frames[1, :, 0], 0, -1))
    assert np.array_equal(tiles[:5, 10:], np.moveaxis(recon[0], 0, -1))


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


def test_the_store_keeps_the_first_samples_of_every_dataset_and_no_more():
    store = SampleStore(pictures=2, points=3)
    first, out = batch_of([0, 0, 0, 1], action=torch.randn(4, 7)), output_of(4)
    store.add(first, out)
    store.add(batch_of([0, 0, 2], action=torch.randn(3, 7)), output_of(3))
    kept = dict(store.items())
    assert {n: len(b.frames) for n, b in kept.items()} == {"a": 2, "b": 1, "c": 1}
    assert {n: len(b.codes) for n, b in kept.items()} == {"a": 3, "b": 1, "c": 1}
    assert np.array_equal(kept["a"].frames[1], first["frames"][1].numpy())
    predicted = (out.recon[3].clamp(0, 1) * 255).round().to(torch.uint8)
    assert np.array_equal(kept["b"].recon[0], predicted.numpy())
    assert kept["a"].indices().tolist() == out.indices[:3].tolist()
    assert len(kept["a"].actions) == 3
    store.clear()
    assert len(store) == 0


def test_the_store_owns_what_it_keeps():
    """A batch is lent memory: what stays must not change with it."""
    store, batch = SampleStore(), batch_of([0])
    store.add(batch, output_of(1))
    before = store.items()[0][1].frames[0].copy()
    batch["frames"].zero_()
    assert np.array_equal(store.items()[0][1].frames[0], before)


def test_a_batch_without_dataset_numbers_is_one_dataset_and_too_many_datasets_are_left_out():
    store = SampleStore(datasets=1)
    batch = batch_of([0, 1])
    store.add(batch, output_of(2))
    assert [name for name, _ in store.items()] == ["a"]
    store = SampleStore()
    del batch["dataset"]
    store.add(batch, output_of(2))
    assert [name for name, _ in store.items()] == ["all"]


def test_pictures_are_kept_within_so_many_bytes_shared_by_the_datasets():
    sample = 3 * 2 * 8 * 8 + 3 * 8 * 8
    store = SampleStore(pictures=8, bytes=7 * sample)  # two for each of three datasets
    for _ in range(3):
        store.add(batch_of([0, 0, 1, 2]), output_of(4))
    assert {name: len(samples.frames) for name, samples in store.items()} == {
        "a": 2,
        "b": 2,
        "c": 2,
    }
    assert [len(samples.codes) for _, samples in store.items()] == [6, 3, 3]
