"""Callbacks for a Lightning trainer; each may be used alone, also without the data module."""

from headrace.outputs.lightning.callbacks.batch_mix import BatchMix
from headrace.outputs.lightning.callbacks.dataset_usage import DatasetUsage
from headrace.outputs.lightning.callbacks.memory import Memory
from headrace.outputs.lightning.callbacks.progress_line import ProgressLine
from headrace.outputs.lightning.callbacks.summary import Summary
from headrace.outputs.lightning.callbacks.throughput import Throughput
from headrace.outputs.lightning.callbacks.usual import usual_callbacks

__all__ = [
    "BatchMix",
    "DatasetUsage",
    "Memory",
    "ProgressLine",
    "Summary",
    "Throughput",
    "usual_callbacks",
]
