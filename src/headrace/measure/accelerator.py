"""Waiting for what a framework has queued on its device, so that a clock tells the truth."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["finish"]


def finish(result: Any = None) -> None:
    """Return when all work queued so far is done; imports no framework that nobody uses.

    `result` is what the last call returned: JAX waits for values, not for devices.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    jax = sys.modules.get("jax")
    if jax is not None and result is not None:
        jax.block_until_ready(result)
