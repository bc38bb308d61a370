"""Datasets shared by the tests of this room, and the real TFDS to read them."""

import os

import pytest

from headrace.testing import synthesize

SEED = 3
EPISODES = 2
MAX_STEPS = 4


@pytest.fixture(scope="session")
def oxe_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("oxe29")
    synthesize(root, episodes=EPISODES, seed=SEED, workers=1, _max_steps=MAX_STEPS)
    return root


@pytest.fixture(scope="session")
def odd_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    synthesize(root, preset="odd", seed=SEED, workers=1)
    return root


@pytest.fixture(scope="session")
def tfds():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow_datasets")
