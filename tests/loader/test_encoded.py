"""Batches that hold JPEGs as they are, for a device to decode."""

import numpy as np
import pytest

from headrace.decoding.frame import FrameDecoder
from headrace.errors import ImageError
from headrace.loader.batch import EncodedBatch
from headrace.loader.loader import feed_of
from headrace.reading.local import LocalFiles
from tests.loader.conftest import make_mixture, spoil_frame
from tests.loader.test_loader import digest, rows

OPTIONS = {"image_size": 128, "batch_size": 8}


def decoded(batch):
    """The frames as pixels, by our own decoder."""
    frames, decoder = batch.frames.copy(), FrameDecoder()
    for place in np.argwhere(batch.encoded).tolist():
        data = batch.frames[tuple(place)].tobytes()[: batch.encoded[tuple(place)]]
        decoder.decode(data, frames[tuple(place)])
    return frames


@pytest.mark.parametrize("processes", [False, True])
def test_encoded_batches_hold_the_same_samples_and_their_jpegs(mixture, loaders, processes):
    plain = loaders(mixture, **OPTIONS)
    kept = loaders(mixture, encoded=True, workers=2 if processes else 0, **OPTIONS)
    sources = set()
    for _ in range(60 if processes else 12):
        here, there = next(plain), next(kept)
        assert rows(here) == rows(there)
        assert (here.action == there.action).all()
        assert here.language == there.language
        assert (decoded(there) == here.frames).all()
        sources |= {there.names[i] for i in there.dataset[there.encoded.any(axis=1)]}
    assert "droid" in sources, "stores JPEGs that fit"
    assert "bridge" not in sources, "stores JPEGs of 480 x 640, larger than 128 x 128 pixels"


def test_a_jpeg_without_room_is_decoded_here(mixture, loaders):
    plain, kept = loaders(mixture), loaders(mixture, encoded=True)  # 32 x 32 pixels: 3 KB
    for _ in range(8):
        here, there = next(plain), next(kept)
        assert (decoded(there) == here.frames).all()
        assert there.encoded.max() <= there.frames[0, 0].nbytes


def test_keeping_can_be_switched_while_batches_are_on_their_way(mixture, loaders):
    plain, kept = loaders(mixture, **OPTIONS), loaders(mixture, encoded=True, **OPTIONS)
    seen = set()
    for number in range(60):
        feed_of(kept).keep_encoded = number % 20 >= 10
        here, there = next(plain), next(kept)
        assert (decoded(there) == here.frames).all()
        seen.add(bool(there.encoded.any()))
    assert seen == {True, False}


def test_a_plain_loader_never_keeps(mixture, loaders):
    loader = loaders(mixture)
    feed_of(loader).keep_encoded = True
    assert not feed_of(loader).keep_encoded
    assert not isinstance(next(loader), EncodedBatch)


def test_rows_can_be_filled_again_with_pixels(mixture, loaders):
    plain, kept = loaders(mixture, **OPTIONS), loaders(mixture, encoded=True, **OPTIONS)
    for batches in ((next(plain), next(kept)), (next(plain.validation()), next(kept.validation()))):
        here, there = batches
        feed_of(kept).refill(there, list(range(0, 8, 2)))
        assert not there.encoded[::2].any()
        assert (there.frames[::2] == here.frames[::2]).all()
        feed_of(kept).refill(there, list(range(8)))
        assert digest(there) == digest(here)


def test_filling_again_finds_what_is_wrong_and_where(own, loaders):
    mixture = make_mixture(own, ["bridge"])
    whole = loaders(mixture, files=LocalFiles(), encoded=True, **OPTIONS)
    batches = [next(whole) for _ in range(3)]
    places = [(b, r) for b, batch in enumerate(batches) for r in range(8)]
    _, t, where = spoil_frame(own)
    wrong = []
    for b, row in places:
        try:
            feed_of(whole).refill(batches[b], [row])
        except ImageError as error:
            wrong.append(batches[b].frame_idx[row])
            assert (error.dataset, error.offset, error.frame) == ("bridge", where.offset, t)
    assert wrong
    assert set(map(int, wrong)) <= {t, t - 2}


def test_filling_again_skips_by_the_rule_of_the_loader(own, loaders):
    mixture = make_mixture(own, ["bridge"])
    options = {"on_error": "skip", "files": LocalFiles(), **OPTIONS}
    kept = loaders(mixture, encoded=True, **options)
    batches = [next(kept) for _ in range(3)]
    spoil_frame(own)
    plain = loaders(mixture, **{**options, "files": LocalFiles()})
    for batch in batches:
        feed_of(kept).refill(batch, list(range(8)))
        assert digest(batch) == digest(next(plain))
    assert kept.statistics().skipped > 0
