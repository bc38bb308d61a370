"""Datasets that many tests share. Tests that change one take a copy."""

import shutil
import signal
from pathlib import Path

import pytest

from headrace.testing import synthesize

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Rooms and modules whose tests look at times, memory, signals, or the threads and files of their
#: process: they need the machine to themselves, all others run beside each other (`make test`).
ALONE = (
    "cli/test_train.py",
    "engine",
    "loader/test_closing.py",
    "loader/test_faults.py",
    "loader/test_loader.py",
    "loader/test_memory.py",
    "loader/test_rows.py",
    "loader/test_workers.py",
    "measure/test_bench.py",
    "measure/test_limit.py",
    "measure/test_baselines.py",
    "reading",
    "tuning/test_doctor.py",
    "tuning/test_doctor_provoked.py",
    "tuning/test_study.py",
    "tuning/test_study_trial.py",
    "tuning/test_tune.py",
)
SHARED = Path(__file__).parents[2] / "shared" / "data" / "bridge_dataset" / "1.0.0"


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        if path.as_posix() in ALONE or path.parts[0] in ALONE:
            item.add_marker("alone")


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
