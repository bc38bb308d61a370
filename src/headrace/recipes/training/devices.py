"""Where a run computes, and how exactly: what `auto` means on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from headrace.engine.machine import allowed_cpus
from headrace.errors import UsageError

__all__ = ["Devices"]


@dataclass(frozen=True, slots=True)
class Devices:
    """As Lightning's trainer takes it."""

    cuda: bool
    count: int  #: of a machine; -1: all
    nodes: int
    strategy: str
    precision: str

    @staticmethod
    def choose(accelerator: str, count: int, nodes: int, strategy: str, precision: str) -> Devices:
        """CUDA where there is one, in bfloat16; several devices by ddp."""
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
        """Leave a CPU to the loader where the model needs them too, unless OMP_NUM_THREADS is set.

        On 2 CPUs that are not idle, torch with two threads took four times as long for a small
        model as with one: its threads wait for each other at every operation.
        """
        if not self.cuda and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, allowed_cpus() - 1))

    @property
    def accelerator(self) -> str:
        """By Lightning's name."""
        return "cuda" if self.cuda else "cpu"
