"""Checkpoints: written atomically, at intervals, at the end and on Ctrl-C; checked when resumed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from headrace.errors import UsageError
from headrace.files import replacing


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the file and renames.

    Lightning's own way writes to the system's temporary folder first and copies from there: a run
    that is killed then leaves half a file in the place of a good one.

    Each write happens inside the contexts that `during` returns.
    """

    def __init__(self, *during: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._during = during

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Replace the file by one that is on the disk."""
        target = Path(path)
        with ExitStack() as stack:
            for enter in self._during:
                stack.enter_context(enter())
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with replacing(target) as file:
                    torch.save(checkpoint, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None  # torch hides a full disk behind its own
                raise


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` every so many steps or minutes, after the last step, and on Ctrl-C.

    The first Ctrl-C (or SIGTERM) ends the run after the current step; `stopped` says so. The second
    one ends it at once. With several ranks the clock and the signals of the first one count, asked
    for every `poll` steps, because all must save and stop at the same step.
    """

    def __init__(self, file: Path, *, every_n_steps: int, minutes: float, poll: int = 10) -> None:
        self._file = file
        self._every, self._seconds, self._poll = every_n_steps, 60 * minutes, poll
        self._saved_at, self._step = monotonic(), 0
        self._signalled = False
        self._before: dict[int, Any] = {}
        self.stopped = False  #: a signal has ended the run

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """From now on a signal waits for the end of a step."""
        self._saved_at, self._step = monotonic(), trainer.global_step
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if it is time; stop if a signal has asked for it."""
        step = trainer.global_step
        if step == self._step:
            return  # amid accumulated gradients, which a checkpoint would lack
        self._step = step
        timely, stop = monotonic() - self._saved_at > self._seconds, self._signalled
        if trainer.world_size > 1:
            due = step % self._poll == 0
            timely, stop = trainer.strategy.broadcast((timely, stop)) if due else (False, False)
        if step % self._every == 0 or timely or stop or step == trainer.max_steps:
            trainer.save_checkpoint(self._file)
            self._saved_at = monotonic()
        if stop:
            self.stopped = True
            trainer.limit_val_batches = 0  # else Lightning validates before it stops
            trainer.should_stop = True

    def on_train_end(self, *_: Any) -> None:
        """Restore the signal handlers."""
        self._restore()

    def on_exception(self, *_: Any) -> None:
        """Restore the signal handlers."""
        self._restore()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._signalled:
            raise KeyboardInterrupt
        self._signalled = True
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            print("\nstopping after this step; again to stop at once", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint before it is loaded: what it holds."""

    path: Path
    step: int
    config: Mapping[str, Any]  #: the task's hyperparameters
    weights: Mapping[str, torch.Tensor]  #: mapped from the file, not read

    @staticmethod
    def read(path: Path, key: str) -> CheckpointFile:
        """Open a file; `key` is the config's, for the messages."""
        others = sorted(each.name for each in path.parent.glob("*.ckpt") if each != path)
        beside = f" Beside it: {', '.join(others)}." if others else ""
        try:
            # Mapped, so that gigabytes are not read twice.
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            return CheckpointFile(
                path,
                int(found["global_step"]),
                found.get("hyper_parameters", {}),
                found["state_dict"],
            )
        except FileNotFoundError:
            raise UsageError(
                f"{key}: there is no checkpoint {path}", remedy=f"Give another.{beside}"
            ) from None
        except KeyError as error:
            raise UsageError(
                f"{key}: {path} is not a checkpoint of a training run: it lacks {error}",
                remedy="Give one of `headrace train` or Lightning",
            ) from None
        except Exception as error:  # torch, zip and pickle each raise their own
            words = " ".join(str(error).split())[:200]
            raise UsageError(
                f"{key}: {path} cannot be read: it is damaged or not a checkpoint ({words})",
                remedy=f"Give another.{beside}",
            ) from None


def check_same(
    path: Path,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    group: str,
    keys: Collection[str],
    remedy: str,
) -> None:
    """Refuse a checkpoint in which one of these keys has another value; all of them are named."""
    other = [k for k in keys if k in was and k in now and _plain(was[k]) != _plain(now[k])]
    if other:
        listed = "; ".join(f"{group}.{k} was {was[k]!r}, is {now[k]!r}" for k in other)
        raise UsageError(f"the checkpoint {path} is of another {group}: {listed}", remedy=remedy)


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
