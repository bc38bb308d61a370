"""A small mixture and torch loaders that are closed after the test."""

import pytest

import headrace as hr
from headrace.outputs.torch import TorchLoader
from headrace.testing import synthesize

NAMES = ("bridge", "language_table", "kuka")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Three datasets of three episodes of up to nine steps. Do not change them."""
    root = tmp_path_factory.mktemp("outputs")
    synthesize(root, only=NAMES, episodes=3, seed=5, _max_steps=9)
    return root


def mixture_dict(data):
    defaults = {"split": "train[:2]", "val_split": "train[2:]", "offset": 2, "weight": 1.0}
    return {
        "root": str(data),
        "defaults": defaults,
        "sources": [{"name": name} for name in NAMES],
    }


@pytest.fixture
def mixture(data):
    """All of them, a window of two steps, one episode to validate on."""
    return hr.Mixture.from_dict(mixture_dict(data))


#: Small, quick and without a memory floor.
OPTIONS = {"batch_size": 4, "image_size": 32, "keep_free": 0, "workers": 2}


@pytest.fixture
def plain(mixture):
    """The loader whose batches are the measure."""
    with hr.Loader(mixture, **OPTIONS) as loader:
        yield loader


@pytest.fixture
def loaders(mixture):
    """Makes torch loaders and closes them."""
    made = []

    def make(**options):
        made.append(TorchLoader(mixture, **{**OPTIONS, **options}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
