"""Small data whose cost is known, and loaders over it that are closed after the test."""

import pytest

import headrace as hr
from headrace.loader import LoaderOptions
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import loader_over
from headrace.measure import limit
from headrace.testing import synthesize
from headrace.tuning import doctor

NAMES = ("bridge", "ucsd_kitchen", "kuka")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Three datasets, of JPEG and PNG. Do not change them."""
    root = tmp_path_factory.mktemp("tuning")
    synthesize(root, only=NAMES, episodes=3, seed=2, _max_steps=12)
    return root


@pytest.fixture
def mixture(data):
    """All three, in equal shares."""
    sources = [{"name": name, "weight": 1.0, "offset": 2} for name in NAMES]
    return hr.Mixture.from_dict({"root": str(data), "sources": sources})


@pytest.fixture
def loaders(mixture):
    """Makes loaders and closes them; without processes unless they are asked for."""
    made = []

    def make(**options):
        files = options.pop("files", None)
        settings = {"batch_size": 8, "image_size": 64, "keep_free": 0, "workers": 0, **options}
        made.append(loader_over(MixtureFeed(mixture, LoaderOptions(**settings), files=files)))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@pytest.fixture
def quick_limits(monkeypatch):
    """Limits need not be exact to be told apart."""
    monkeypatch.setattr(limit, "_START_SECONDS", 1.0)
    monkeypatch.setattr(doctor, "_DECODE_SECONDS", 0.4)
    monkeypatch.setattr(doctor, "_STORAGE_SECONDS", 0.2)
