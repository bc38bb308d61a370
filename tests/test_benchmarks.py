"""The benchmark scripts can be started: they import what the package has."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "argparse" in path.read_text("utf-8"))
BY_MODULE = {"memory_limit"}  # it shares a module with the tests


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(name):
    if name.startswith("laq"):
        pytest.importorskip("torch")
    start = ["-m", f"benchmarks.{name}"] if name in BY_MODULE else [f"benchmarks/{name}.py"]
    done = subprocess.run(
        [sys.executable, *start, "--help"], cwd=FOLDER.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
