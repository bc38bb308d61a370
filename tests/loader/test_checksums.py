"""No damaged frame is ever delivered: bytes that change after indexing give an error."""

import logging
import os

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace.engine.statistics import Counters
from headrace.errors import DataError, ImageError
from headrace.loader import LoaderOptions
from headrace.loader.plan import PendingBatch, SampleTask
from headrace.loader.samples import MixtureSamples
from headrace.loader.work import SampleTasks, SkippedSamples
from headrace.testing import features as f
from headrace.testing import write_dataset
from tests.loader.conftest import make_mixture, spoil_frame

STEPS = 3


@pytest.fixture
def small(tmp_path):
    """One episode with a JPEG, a PNG and a depth camera, and images of some hundred bytes."""
    rng = np.random.default_rng(0)

    def images(extension, shape, dtype):
        ramp = np.linspace(0, 200, int(np.prod(shape))).reshape(shape)
        noisy = [(ramp + rng.integers(0, 50, shape)).astype(dtype) for _ in range(STEPS)]
        return [cv2.imencode(extension, image)[1].tobytes() for image in noisy]

    features = {
        "jpeg": f.Image((12, 12, 3), encoding_format="jpeg"),
        "png": f.Image((8, 8, 3), encoding_format="png"),
        "depth": f.Image((6, 6, 1), "uint16", encoding_format="png"),
        "action": f.Tensor((2,), "float32"),
    }
    episode = {
        "jpeg": images(".jpg", (12, 12, 3), np.uint8),
        "png": images(".png", (8, 8, 3), np.uint8),
        "depth": images(".png", (6, 6, 1), np.uint16),
        "action": np.zeros((STEPS, 2), np.float32),
    }
    target = tmp_path / "small" / "1.0.0"
    tree = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict(features))})
    write_dataset(target, tree, {"train": [[{"steps": episode}]]})
    return target


class Flips:
    """Flips bits of a file in place, so that neither its size nor its time change."""

    def __init__(self, path):
        self.path, self.stat = path, os.stat(path)
        self.fd = os.open(path, os.O_RDWR)

    def bit(self, offset, bit):
        (byte,) = os.pread(self.fd, 1, offset)
        os.pwrite(self.fd, bytes([byte ^ 1 << bit]), offset)
        os.utime(self.path, ns=(self.stat.st_atime_ns, self.stat.st_mtime_ns))


def samples_of(folder, camera, **options):
    mixture = hr.Mixture.from_dict(
        {"sources": [{"name": "small", "path": str(folder), "camera": camera, "offset": 1}]}
    )
    settings = {"batch_size": 2, "image_size": 32, "keep_free": 0, "workers": 0, **options}
    return MixtureSamples(mixture, LoaderOptions(**settings))


def perform(samples, draws, arrays, limit, *, keep_encoded=False):
    """Fill a batch as the loader does, on this thread; which frames were damaged."""
    tasks = SampleTasks(SkippedSamples(limit), keep_encoded)
    task = SampleTask(PendingBatch(draws.number, samples._planner), samples.plan(draws))
    filler = samples._filler()
    tasks.perform(task, lambda plan, keep: filler.fill(plan, arrays, Counters(), keep))
    return tasks.skipped.damaged


def flip_every_byte(folder, camera, flips, check):
    """Call `check` with each byte of each frame of a camera flipped in turn; how many."""
    catalog, count = hr.Catalog.open(folder), 0
    for t in range(STEPS):
        where = catalog.place(0, t, camera)
        for offset in range(where.offset, where.offset + where.length):
            flips.bit(offset, offset % 8)
            check(t, offset, where)
            flips.bit(offset, offset % 8)
            count += 1
    return count


def place_of(error):
    return error.dataset, error.file, error.offset, error.episode, error.frame, error.field


@pytest.mark.parametrize("camera", ["jpeg", "png"])
def test_every_byte_of_an_image_flipped_in_turn_gives_an_error_or_the_right_frame(small, camera):
    samples = samples_of(small, camera)
    (catalog,) = (source.catalog for source in samples.sources)
    flips = Flips(catalog.place(0, 0, camera).path)
    draws = samples.sampler.draw(np.arange(2))  # both windows of the episode: steps 0, 1 and 1, 2
    plan, filler, arrays = samples.plan(draws), samples._filler(), samples.read(draws)
    right = arrays["frames"].copy()
    windows = {start: right[row] for row, start in enumerate(draws.start.tolist())}

    def check(t, offset, where):
        place = ("small", where.path, where.offset, "train/00000/0", t, f"steps/{camera}")
        # What on_error="raise" raises and on_error="skip" replaces.
        _, error, _ = filler.fill(plan.matrix, arrays, Counters())
        assert isinstance(error, ImageError)
        assert place_of(error) == place
        with pytest.raises(ImageError) as caught:
            catalog.frame(0, t, camera)
        assert place_of(caught.value) == ("small 1.0.0", *place[1:])
        if offset % 4:
            return
        with pytest.raises(ImageError) as caught:
            perform(samples, draws, arrays, None)
        assert place_of(caught.value) == place
        if t != 1:  # which both windows hold, so that nothing can stand in
            arrays["frames"][...] = 0
            (damaged,) = perform(samples, draws, arrays, 9)
            assert place_of(damaged) == place
            (good,) = windows.keys() - {0 if t == 0 else 1}
            assert (arrays["frames"] == windows[good]).all()

    count = flip_every_byte(small, camera, flips, check)
    assert count > 3 * 150
    assert (samples.read(draws)["frames"] == right).all()


def test_without_checksums_flipped_bytes_give_other_pixels(small):
    """The twin of the test above: it shows what a quick index cannot notice."""
    hr.Catalog.open(small, quick=True)
    samples = samples_of(small, "jpeg")
    draws = samples.sampler.draw(np.arange(2))
    right, wrong = samples.read(draws)["frames"], 0
    flips = Flips(hr.Catalog.open(small).place(0, 0).path)

    def check(*_):
        nonlocal wrong
        try:
            wrong += not (samples.read(draws)["frames"] == right).all()
        except DataError:
            pass

    flip_every_byte(small, "jpeg", flips, check)
    assert wrong > 0


def test_a_jpeg_that_is_kept_for_a_device_is_checked_too(small):
    samples = samples_of(small, "jpeg")
    draws = samples.sampler.draw(np.arange(2))
    arrays = {**samples.read(draws), "encoded": np.zeros((2, 2), np.int32)}
    assert perform(samples, draws, arrays, None, keep_encoded=True) == ()
    assert arrays["encoded"].all(), "the JPEGs were not kept"
    where = samples.sources[0].catalog.place(0, 1)
    Flips(where.path).bit(where.offset + where.length - 9, 3)
    with pytest.raises(ImageError) as caught:
        perform(samples, draws, arrays, None, keep_encoded=True)
    assert (caught.value.offset, caught.value.frame) == (where.offset, 1)


@pytest.mark.parametrize("camera", ["jpeg", "png", "depth"])
def test_the_catalog_checks_whatever_it_reads_of_a_camera(small, camera):
    catalog = hr.Catalog.open(small)
    where = catalog.place(0, 2, camera)
    Flips(where.path).bit(where.offset + where.length // 2, 0)
    reads = [
        lambda: catalog.frame(0, 2, camera),
        lambda: catalog.encoded(0, -1, camera),
        lambda: catalog.read(0, camera),
    ]
    for read in reads:
        with pytest.raises(ImageError) as caught:
            read()
        place = ("small 1.0.0", where.path, where.offset, "train/00000/0", 2, f"steps/{camera}")
        assert place_of(caught.value) == place
        assert caught.value.remedy
    assert len(catalog.read(0, camera, 0, 2)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_never_delivers_a_flipped_frame(own, loaders, workers):
    """One bit, in the middle of the entropy-coded data, where a decoder notices nothing."""
    mixture = make_mixture(own, ["bridge"])
    number, t, where = spoil_frame(own, bit=True)
    assert hr.Catalog.open(own / "bridge" / "0.1.0").checksums
    with pytest.raises(ImageError) as caught:
        loader = loaders(mixture, workers=workers)
        for _ in range(40):
            next(loader)
    error = caught.value
    assert (error.dataset, error.file, error.offset, error.frame) == (
        "bridge",
        where.path,
        where.offset,
        t,
    )
    loader = loaders(mixture, workers=workers, on_error="skip")
    for _ in range(40):
        next(loader)
    (damaged,) = loader.statistics().damaged
    assert place_of(damaged) == place_of(error)
    assert number is not None


def test_a_loader_over_quick_catalogs_says_so(own, loaders, caplog):
    hr.Catalog.open(own / "bridge" / "0.1.0", quick=True)
    with caplog.at_level(logging.WARNING, "headrace"):
        loader = loaders(make_mixture(own, ["bridge", "droid"]))
    assert loader.statistics().unchecked == ("bridge",)
    (said,) = (record.message for record in caplog.records if "quick" in record.message)
    assert "bridge" in said
    assert "droid" not in said
    next(loader)


def test_checksums_do_not_change_the_order_nor_the_state(own, loaders):
    mixture = make_mixture(own, ["bridge"])
    hr.Catalog.open(own / "bridge" / "0.1.0", quick=True)
    quick = loaders(mixture)
    batches = [next(quick).draws.tolist() for _ in range(3)]
    state = quick.state_dict()
    hr.Catalog.open(own / "bridge" / "0.1.0", quick=False)
    full = loaders(mixture)
    assert [next(full).draws.tolist() for _ in range(3)] == batches
    loaders(mixture).load_state_dict(state)
    assert full.state_dict() == state
