"""Backends that a benchmark can run, one file each: headrace itself and its rivals.

Each file has one `BASELINE` and imports its framework only when it is opened.
"""

from __future__ import annotations

from importlib import import_module

from headrace.config.typed import nearest
from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Baseline

__all__ = ["BASELINES", "NOT_RUN", "find_baseline"]

#: Name to module below this one.
BASELINES = {
    "headrace": "native",
    "tfdata": "tfdata",
    "torch": "torch",
    "grain": "grain",
    "grain_arrayrecord": "grain_arrayrecord",
    "webdataset": "webdataset",
    "mosaic": "mosaic_streaming",
}

#: Rivals that are not run, and why. Looked at in November 2026.
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
    """A backend by its name."""
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
    baseline: Baseline = import_module(f"headrace.measure.baselines.{BASELINES[name]}").BASELINE
    return baseline
