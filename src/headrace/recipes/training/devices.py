"""The machine a run trains on: what `auto` means on it, and how it fails."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from headrace.engine import allowed_cpus
from headrace.errors import HeadraceError, UsageError


@dataclass(frozen=True, slots=True)
class Devices:
    """What Lightning's trainer is given."""

    cuda: bool
    count: int  #: of a machine; -1: all
    nodes: int
    strategy: str
    precision: str

    @staticmethod
    def choose(accelerator: str, count: int, nodes: int, strategy: str, precision: str) -> Devices:
        """CUDA if there is a device, in bfloat16; several devices by ddp."""
        if accelerator == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "training.accelerator is cuda, and torch sees no CUDA device",
                remedy="Check the driver (nvidia-smi) and that torch was built for CUDA, or train "
                "on the CPU (training.accelerator=cpu)",
            )
        cuda = accelerator != "cpu" and torch.cuda.is_available()
        if precision == "auto":
            precision = "bf16-mixed" if cuda else "32-true"
        if count == -1 and not cuda:
            count = 1
        if strategy == "auto" and (count != 1 or nodes > 1):
            strategy = "ddp"
        return Devices(cuda, count, nodes, strategy, precision)

    def share_cpus(self) -> None:
        """Leave one CPU to the loader if the model runs on CPUs too, unless OMP_NUM_THREADS is set.

        On 2 CPUs that are not idle, torch with two threads took four times as long for a small
        model as with one: its threads wait for each other at every operation.
        """
        if not self.cuda and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, allowed_cpus() - 1))

    @property
    def accelerator(self) -> str:
        """As Lightning calls it."""
        return "cuda" if self.cuda else "cpu"


def explain_failure(
    error: BaseException, *, batch_size: int, accumulate: int, checkpoint: Path
) -> HeadraceError | None:
    """An error with a remedy for one that a user can do something about; None: it is a bug."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return _out_of_memory(error, batch_size, accumulate)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        where = f" [file {error.filename}]" if error.filename else ""
        resumed = "; then training.resume=auto continues" if checkpoint.is_file() else ""
        return UsageError(
            f"the run's files cannot be written: {error.strerror}{where}",
            remedy=f"Free some space or give another folder (logging.runs=){resumed}",
        )
    return None


def _out_of_memory(error: BaseException, batch_size: int, accumulate: int) -> HeadraceError:
    said = str(error).split(". ")[0].strip()
    if batch_size < 2:
        remedy = "Even one sample does not fit: choose a smaller model (model=small)"
        return UsageError(f"out of GPU memory: {said}", remedy=remedy)
    # Whole divisors keep the effective batch exactly.
    parts = next(n for n in range(2, batch_size + 1) if batch_size % n == 0)
    smaller, more = batch_size // parts, accumulate * parts
    return UsageError(
        f"out of GPU memory at data.loader.batch_size={batch_size}: {said}",
        remedy=f"Try data.loader.batch_size={smaller} training.accumulate={more}, which keeps "
        f"the effective batch of {batch_size * accumulate} samples",
    )
