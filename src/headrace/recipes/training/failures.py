"""What ends a training run, in words that say what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import torch

from headrace.errors import HeadraceError, UsageError

__all__ = ["explained"]


def explained(
    error: BaseException, *, batch_size: int, accumulate: int, checkpoint: Path
) -> HeadraceError | None:
    """An error of ours for one that a person can do something about; None: it is a bug."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return _out_of_memory(error, batch_size, accumulate)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        where = f" [file {error.filename}]" if error.filename else ""
        resumed = "; then training.resume=auto goes on" if checkpoint.is_file() else ""
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
