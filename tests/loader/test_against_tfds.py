"""What the loader hands out is what TFDS and TensorFlow give for the same step."""

import numpy as np
import pytest

import headrace as hr
from headrace.loader.loader import feed_of
from tests import tfds_reading
from tests.loader.conftest import make_mixture

pytestmark = [pytest.mark.tfds, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("name", ["bridge", "utaustin_mutex", "kuka", "language_table"])
def test_frames_action_state_and_language_are_those_of_tfds(data, loaders, name):
    import tensorflow as tf

    known = hr.known_dataset(name)
    folder = data / known.folder
    theirs = [steps for _, steps in tfds_reading.episodes(folder, "train", decode=True)]
    mixture = make_mixture(data, [name], split="train")
    loader = loaders(mixture, batch_size=1, image_size=96, action="sum")
    (source,) = feed_of(loader).sources
    first = int(source.catalog.episodes("train")[0])
    total = source.items(source.catalog.episodes("train")).length
    worst = 0
    for _ in range(total):
        batch = next(loader)
        number = int(batch.episode_id[0])
        episode = source.catalog.first_rows[number >> 32] + (number & 0xFFFFFFFF) - first
        t = int(batch.frame_idx[0])
        steps = theirs[episode]
        for place, step in enumerate((t, t + 2)):
            image = steps[step][known.camera]
            resized = tf.image.resize(image, (96, 96), method="bilinear").numpy()
            difference = np.abs(batch.frames[0, place] - np.rint(resized)).max()
            worst = max(worst, int(difference))
        action = sum(steps[t + i][known.action].numpy().reshape(-1) for i in range(2))
        np.testing.assert_allclose(batch.action[0], action, rtol=1e-5, atol=1e-7)
        if known.state:
            state = steps[t][known.state].numpy().reshape(-1)
            np.testing.assert_allclose(batch.state[0], state, rtol=1e-6)
        said = steps[t][known.language].numpy()
        text = said.decode() if isinstance(said, bytes) else "".join(chr(c) for c in said if c)
        assert batch.language == [text]
    assert worst <= 1
