"""Datasets that many tests share. Tests that change one take a copy."""

import shutil
from pathlib import Path

import pytest

from headrace.testing import synthesize

SHARED = Path(__file__).parents[2] / "shared" / "data" / "bridge_dataset" / "1.0.0"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "headrace-cache"))


@pytest.fixture(scope="session")
def oxe(tmp_path_factory):
    """All 29 datasets, a few short episodes each. Do not change it: see `bridge`."""
    root = tmp_path_factory.mktemp("oxe")
    synthesize(root, episodes=3, seed=5, _max_steps=7)
    return root


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    """The datasets of odd cases. Do not change them."""
    root = tmp_path_factory.mktemp("odd")
    synthesize(root, preset="odd", seed=5)
    return root


@pytest.fixture
def bridge(oxe, tmp_path):
    """A copy of one dataset, to be spoiled."""
    target = tmp_path / "data" / "bridge" / "0.1.0"
    ignore = shutil.ignore_patterns(".headrace")
    shutil.copytree(oxe / "bridge" / "0.1.0", target, ignore=ignore)
    return target


@pytest.fixture
def real_bridge(tmp_path):
    """A copy of a small real dataset, where it is at hand."""
    if not SHARED.exists():
        pytest.skip("the real bridge excerpt is not at hand")
    target = tmp_path / "real" / "bridge_dataset" / "1.0.0"
    shutil.copytree(SHARED, target)
    target.chmod(0o755)
    return target
