"""What a benchmark can run: headrace's own loader and the baselines it is compared with.

Each is described by the one `BASELINE` of its module, which imports its framework only when it is
opened.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import headrace
from headrace.config.typed import nearest
from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Baseline, Opened, check_installed
from headrace.measure.job import JOB_KEYS, Job

__all__ = [
    "BASELINES",
    "JOB_KEYS",
    "NOT_RUN",
    "Job",
    "Opened",
    "check_installed",
    "find_baseline",
]

#: Name to module.
BASELINES = {
    "headrace": "headrace.measure.baselines.native",
    "tfdata": "headrace.measure.baselines.tfdata",
    "torch": "headrace.measure.baselines.torch",
    "grain": "headrace.measure.baselines.grain",
    # These convert the data to formats of their own. They are in the repository, not the package.
    "grain_arrayrecord": "benchmarks.baselines.arrayrecord",
    "webdataset": "benchmarks.baselines.webdataset",
    "mosaic": "benchmarks.baselines.mosaic",
}

#: Other loaders that are not run, and why. Looked at in November 2026.
NOT_RUN = {
    "lerobot": (
        "lerobot 0.4.4 asks for torch < 2.11 and opencv-python-headless < 4.13, older than those "
        "that headrace is tested with (beside torch 2.13 pip falls back to 0.3.2), and brings "
        "serial ports, teleoperation, a viewer and wandb with its loader; that one reads videos or "
        "Parquet of its own, so the frames to decode would be other bytes than those of the rest"
    ),
    "dali": (
        "nvidia-dali is published as CUDA builds only (2.4.0: a wheel of 424 MB beside NVIDIA's "
        "codec libraries), and these benchmarks run without a GPU (its CPU-only mode was not "
        "tried); its TFRecord reader parses an Example whole: of an RLDS episode every frame"
    ),
}


def find_baseline(name: str) -> Baseline:
    """A backend by its name; `UsageError` if there is none, or if it cannot be run here."""
    if name in NOT_RUN:
        raise UsageError(
            f"the backend {name!r} cannot be run: {NOT_RUN[name]}",
            remedy=f"There are {', '.join(BASELINES)}",
        )
    if name not in BASELINES:
        raise UsageError(
            f"there is no backend {name!r}",
            remedy=f"{nearest(name, BASELINES)}There are {', '.join(BASELINES)}",
        )
    module = BASELINES[name]
    if module.startswith("benchmarks."):
        _use_checkout(name, module)
    baseline: Baseline = import_module(module).BASELINE
    return baseline


def _use_checkout(name: str, module: str) -> None:
    """Make a module of the repository importable, here and in worker processes, which inherit
    `sys.path`."""
    root = Path(headrace.__file__).resolve().parents[2]
    if not (root / f"{module.replace('.', '/')}.py").is_file():
        raise UsageError(
            f"the backend {name!r} is in headrace's repository ({module}), not in the installed "
            "package, and headrace does not run from a checkout of it",
            remedy="Clone the repository and install it from there: pip install -e .",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # before site-packages, where others may have `benchmarks`
