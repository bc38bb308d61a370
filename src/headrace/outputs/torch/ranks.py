"""Which of a job's processes this is, and whether it may use a loader."""

from __future__ import annotations

import os

import torch.distributed
from torch.utils.data import get_worker_info

from headrace.errors import UsageError

__all__ = ["check_process", "distributed_rank"]


def distributed_rank() -> tuple[int, int] | None:
    """Rank and world of `torch.distributed`; None if it is not initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def check_process(owner: int) -> None:
    """Raise unless this is the process `owner` and no worker of a torch DataLoader."""
    if get_worker_info() is not None:
        raise UsageError(
            "this is a worker process of torch's DataLoader: each would give the same batches",
            remedy="Iterate over the TorchLoader itself, it has threads of its own; "
            "or wrap it with num_workers=0",
        )
    if os.getpid() != owner:
        raise UsageError(
            f"the TorchLoader was made in process {owner}, and this is {os.getpid()}",
            remedy="Make it after the fork: its threads do not follow into a child",
        )
