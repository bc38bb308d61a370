"""The tf.data backend: the samples, shares and metadata of headrace's loader, with the seeds' knobs."""

import gc
import subprocess
import sys
import threading
from collections import Counter
from time import monotonic

import numpy as np
import pytest

import headrace as hr
from headrace.measure.job import Job
from headrace.measure.peers import find_peer
from headrace.measure.peers.peer import check_installed
from headrace.measure.peers.tfdata.options import Options
from headrace.testing import synthesize

tfds = pytest.mark.tfds
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

#: JPEG, PNG, code points, slashes in keys, zlib doubles, robot names, no state, no action.
NAMES = ("bridge", "utaustin_mutex", "language_table", "bc_z", "droid", "robonet", "tidybot")
SIZE = 48


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Seven datasets of four short episodes. Do not change them."""
    root = tmp_path_factory.mktemp("tfdata")
    synthesize(root, only=NAMES, episodes=4, seed=3, _max_steps=8)
    return root


def mixture(root, names=NAMES, weights=None, **defaults):
    weights = weights or {}
    return hr.Mixture.from_dict(
        {
            "root": str(root),
            "defaults": {"split": "train[:3]", "offset": 2, "weight": 1.0, **defaults},
            "sources": [
                {"name": name, **({"weight": weights[name]} if name in weights else {})}
                for name in names
            ],
        }
    )


def job(mixture, *, batch_size=8, metadata="full", seed=0, **options):
    return Job(
        mixture,
        batch_size=batch_size,
        image_size=SIZE,
        metadata=metadata,
        seed=seed,
        options={"shuffle.global_buffer": 16, **options},
    )


def one_pass(job):
    """All batches of one pass over every source."""
    from headrace.measure.peers.tfdata.batches import TfdataBatches

    opened = TfdataBatches(job, repeat=False)
    try:
        return list(opened)
    finally:
        opened.close()


def samples(batches):
    """(source, episode, t) -> everything else of that sample; a sample that comes twice fails."""
    found = {}
    for batch in batches:
        for row in range(len(batch)):
            key = (
                batch.names[batch.dataset[row]],
                int(batch.episode_id[row]),
                int(batch.frame_idx[row]),
            )
            assert key not in found
            found[key] = {
                "frames": batch.frames[row].copy(),
                "offset": int(batch.offset[row]),
                "action": batch.action[row].copy(),
                "state": batch.state[row].copy(),
                "language": batch.language[row],
                "robot": batch.robot[row],
            }
    return found


def native_samples(mixture):
    """All samples of the mixture's splits, by the loader's validation pass."""
    whole = hr.Mixture.from_dict(
        {
            **mixture.to_dict(),
            "sources": [
                {**source, "val_split": source["split"]} for source in mixture.to_dict()["sources"]
            ],
        }
    )
    with hr.Loader(whole, batch_size=8, image_size=SIZE, keep_free=0, threads=2) as loader:
        return samples(loader.validation())


# -- the same samples ----------------------------------------------------------------------------


@tfds
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tfds_read.skip_steps_decoding": False, "tfds_read.only_needed_fields": False},
        {"pipeline.emit_encoded_pairs": False, "pipeline.post_mix_decode_resize": False},
        {"mixing.strategy": "python", "mixing.mix_block_length": 3},
    ],
    ids=["default", "plain_tfds", "decoded_first", "python"],
)
def test_one_pass_has_exactly_the_samples_of_the_loader(root, options):
    asked = mixture(root)
    theirs, ours = samples(one_pass(job(asked, **options))), native_samples(asked)
    assert theirs.keys() == ours.keys()
    assert len({name for name, _, _ in ours}) == len(NAMES)
    for key, mine in ours.items():
        other = theirs[key]
        difference = np.abs(other["frames"].astype(int) - mine["frames"].astype(int))
        assert difference.max() <= 1
        for name in ("action", "state"):
            assert other[name].shape == mine[name].shape
            np.testing.assert_allclose(other[name], mine[name], rtol=1e-5, atol=1e-6)
        for name in ("language", "offset", "robot"):
            assert other[name] == mine[name]
