"""Batches as torch tensors: `TorchLoader`. Needs torch: `pip install 'headrace[train]'`."""

from headrace.errors import UsageError

try:
    import torch as _torch  # noqa: F401  (here, so that its absence is explained once)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise UsageError(
        "batches as tensors (headrace.outputs.torch) need torch, which is not installed",
        remedy="pip install 'headrace[train]'",
    ) from error

from headrace.outputs.torch.device import Layout, TorchBatch, to_tensors
from headrace.outputs.torch.gpu import GpuReader, GpuReading, peak_flops
from headrace.outputs.torch.loader import TorchLoader, ValidationLoader

__all__ = [
    "GpuReader",
    "GpuReading",
    "Layout",
    "TorchBatch",
    "TorchLoader",
    "ValidationLoader",
    "peak_flops",
    "to_tensors",
]
