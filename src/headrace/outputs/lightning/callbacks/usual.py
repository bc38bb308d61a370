"""The callbacks that a run usually has."""

from __future__ import annotations

from pathlib import Path

from headrace.outputs.lightning.callbacks.batch_mix import BatchMix
from headrace.outputs.lightning.callbacks.dataset_usage import DatasetUsage
from headrace.outputs.lightning.callbacks.memory import Memory
from headrace.outputs.lightning.callbacks.progress_line import ProgressLine
from headrace.outputs.lightning.callbacks.summary import Summary
from headrace.outputs.lightning.callbacks.throughput import Throughput
from headrace.outputs.lightning.framework import Callback

__all__ = ["usual_callbacks"]


def usual_callbacks(
    folder: str | Path | None = None, *, every_n_steps: int | None = None
) -> list[Callback]:
    """One of each: `Trainer(callbacks=usual_callbacks("runs/first"))`.

    The folder is where batch_times.jsonl, memory.jsonl and result.json go; None: the trainer's log
    folder. They log every so many batches; None: as often as the trainer logs.
    """
    return [
        ProgressLine(every_n_steps),
        Throughput(every_n_steps),
        DatasetUsage(every_n_steps),
        BatchMix(folder),
        Memory(every_n_steps, folder=folder),
        Summary(folder),
    ]
