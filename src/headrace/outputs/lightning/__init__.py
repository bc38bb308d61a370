"""Training with Lightning: a data module and callbacks. Needs `pip install 'headrace[train]'`."""

from headrace.outputs.lightning import framework as _framework  # noqa: F401  (first: explains its absence)
from headrace.outputs.lightning.callbacks import (
    BatchMix,
    DatasetUsage,
    GpuUsage,
    Memory,
    ProgressLine,
    Summary,
    Throughput,
    default_callbacks,
)
from headrace.outputs.lightning.datamodule import HeadraceDataModule

__all__ = [
    "BatchMix",
    "DatasetUsage",
    "GpuUsage",
    "HeadraceDataModule",
    "Memory",
    "ProgressLine",
    "Summary",
    "Throughput",
    "default_callbacks",
]
