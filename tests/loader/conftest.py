"""Mixtures for loader tests: a few small datasets with everything that differs between them."""

import os
import shutil

import pytest

import headrace as hr
from headrace.loader import LoaderOptions
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import loader_over
from headrace.testing import synthesize

#: JPEG, PNG, code points, slashes, doubles, zlib numbers, no state, a text for an action.
NAMES = ("bridge", "bc_z", "language_table", "droid", "kuka", "utaustin_mutex", "tidybot")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Seven datasets of four episodes of up to nine steps. Do not change them."""
    root = tmp_path_factory.mktemp("loader")
    synthesize(root, only=NAMES, episodes=4, seed=3, _max_steps=9)
    return root


@pytest.fixture
def mixture(data):
    """All of them, a window of two steps, one episode to validate on."""
    return make_mixture(data)


def make_mixture(data, names=NAMES, **defaults):
    settings = {"split": "train[:3]", "val_split": "train[3:]", "offset": 2, "weight": 1.0}
    return hr.Mixture.from_dict(
        {
            "root": str(data),
            "defaults": {**settings, **defaults},
            "sources": [{"name": name} for name in names],
        }
    )


@pytest.fixture
def loaders():
    """Makes loaders and closes them; by default small, quick and without a memory floor."""
    made = []

    def make(mixture, **options):
        settings = {"batch_size": 4, "image_size": 32, "keep_free": 0, "workers": 2, **options}
        inside = {name: settings.pop(name) for name in ("files", "encoded") if name in settings}
        made.append(loader_over(MixtureFeed(mixture, LoaderOptions(**settings), **inside)))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@pytest.fixture
def own(data, tmp_path):
    """A copy of two datasets, to be spoiled."""
    root = tmp_path / "own"
    for name in ("bridge/0.1.0", "droid/1.0.1"):
        shutil.copytree(data / name, root / name, ignore=shutil.ignore_patterns(".headrace"))
    return root


def spoil_frame(root, episode=1, t=3, *, bit=False):
    """Damage one JPEG of bridge so that it cannot be decoded, and keep the catalog valid.

    With `bit`, flip one bit of its pixels only.
    """
    catalog = hr.Catalog.open(root / "bridge" / "0.1.0")
    number = int(catalog.episodes("train")[episode])
    where = catalog.place(number, t)
    stat = os.stat(where.path)
    with open(where.path, "r+b") as file:
        if bit:
            middle = where.offset + where.length // 2
            file.seek(middle)
            flipped = bytes([file.read(1)[0] ^ 1])
            file.seek(middle)
            file.write(flipped)
        else:
            file.seek(where.offset)
            file.write(bytes(64))
    os.utime(where.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return number, t, where
