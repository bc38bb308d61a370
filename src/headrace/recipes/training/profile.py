"""Where the time of a run goes: data, forward, backward, optimizer, validation, checkpoints, other.

    profile of 390 steps: dataloader 0.4%  forward 33.1%  backward 52.0%  optimizer 9.2%  other 5.3%

On a CPU these are times of the host. On a GPU kernels are only queued by the host, so the times are
the device's own: an event in its stream at every boundary, read when the device has passed it; no
step waits for them. There the dataloader's share is the time in which the device was idle while the
host waited for a batch: a wait that is covered by queued work costs nothing, and does not count.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.files import atomic_write

PHASES = ("dataloader", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
_NOT_ALWAYS = ("validation", "checkpoint")
_GAP = "gap"  # between two steps: divided into dataloader and other
_MOST_PENDING = 256  # boundaries; a device that far behind is waited for


class _Clock(Protocol):
    def mark(self) -> Any: ...
    def passed(self, mark: Any) -> bool: ...
    def seconds(self, first: Any, second: Any) -> float: ...


class _HostClock:
    def mark(self) -> float:
        return perf_counter()

    def passed(self, mark: float) -> bool:
        return True

    def seconds(self, first: float, second: float) -> float:
        return second - first


class _DeviceClock:
    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call,unused-ignore]
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return float(first.elapsed_time(second)) / 1000


class StepProfile(Callback):
    """Sums up the phases of all steps but the first, in which much happens once.

    Put it first among the callbacks: what the others do after a step is then "other". `waited`
    gives the seconds that the loader has been waited for so far.
    """

    def __init__(self, folder: Path | None, waited: Callable[[], float]) -> None:
        self._folder, self._waited_so_far = folder, waited
        self._clock: _Clock = _HostClock()
        self._marks: deque[tuple[str, Any, float]] = deque()  # phase that begins, when, waited
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._gap = self._waited = 0.0
        self._started = self._first_step = 0.0
        self._warm = False
        self.steps = 0  #: batches that are counted

    @property
    def shares(self) -> dict[str, float]:
        """Of each phase; empty if nothing was counted."""
        total = sum(self._seconds.values())
        return {name: value / total for name, value in self._seconds.items()} if total else {}

    @property
    def line(self) -> str:
        """The shares in one line."""
        if not self.shares:
            return "profile: too few steps"
        parts = "  ".join(
            f"{name} {value:.1%}"
            for name, value in self.shares.items()
            if value or name not in _NOT_ALWAYS
        )
        return f"profile of {self.steps:,} steps: {parts}"

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Choose the clock, now that the device is known."""
        device = trainer.strategy.root_device.type
        self._clock = _DeviceClock() if device == "cuda" else _HostClock()
        self._started = perf_counter()

    def on_train_batch_start(self, *_: Any) -> None:
        """The batch has arrived."""
        self._mark("forward")

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        """The loss is known."""
        self._mark("backward")

    def on_after_backward(self, *_: Any) -> None:
        """Clipping and the step come next, or nothing while gradients accumulate."""
        self._mark("optimizer")

    def on_train_batch_end(self, *_: Any) -> None:
        """The step is over."""
        if not self._warm:
            self._warm, self._first_step = True, perf_counter() - self._started
            self._waited = self._waited_so_far()
        else:
            self.steps += 1
        self._mark(_GAP)
        self._settle()

    def on_validation_start(self, *_: Any) -> None:
        """Validation is not part of a step."""
        self._mark("validation")

    def on_validation_end(self, *_: Any) -> None:
        """Back to training."""
        self._mark(_GAP)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the writing of a checkpoint, between two steps."""
        self._mark("checkpoint")
        try:
            yield
        finally:
            self._mark(_GAP)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the profile."""
        self._finish(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write what there is of it, unless the device may have failed."""
        if isinstance(exception, KeyboardInterrupt):
            self._finish(trainer)

    def _mark(self, phase: str) -> None:
        if self._warm:
            self._marks.append((phase, self._clock.mark(), self._waited_so_far()))

    def _settle(self, *, wait: bool = False) -> None:
        """Count the phases whose ends have passed."""
        while len(self._marks) > 1 and (
            wait or len(self._marks) > _MOST_PENDING or self._clock.passed(self._marks[1][1])
        ):
            phase, begun, _ = self._marks.popleft()
            following, ended, waited = self._marks[0]
            seconds = self._clock.seconds(begun, ended)
            if phase == _GAP:
                self._gap += seconds
            else:
                self._seconds[phase] += seconds
            if following == "forward":
                data = min(self._gap, waited - self._waited)
                self._seconds["dataloader"] += data
                self._seconds["other"] += self._gap - data
                self._gap, self._waited = 0.0, waited

    def _finish(self, trainer: Trainer) -> None:
        self._settle(wait=True)
        self._seconds["other"] += self._gap
        self._gap = 0.0
        if self._folder is None or trainer.global_rank != 0:
            return
        found = {
            "steps": self.steps,
            "first_step_s": self._first_step,
            "clock": "device" if isinstance(self._clock, _DeviceClock) else "host",
            "seconds": self._seconds,
            "shares": self.shares,
        }
        atomic_write(self._folder / "profile.json", json.dumps(found, indent=2) + "\n")
        atomic_write(self._folder / "profile.txt", self.line + "\n")


class Trace(Callback):
    """Records a few steps by torch's profiler: `trace.json`, for chrome://tracing or Perfetto."""

    def __init__(self, folder: Path, *, after: int = 10, steps: int = 4) -> None:
        self._folder, self._after, self._steps = folder, after, steps
        self._batches = 0
        self._profiler: Any = None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Start after the first steps."""
        if self._batches == self._after and trainer.global_rank == 0:
            self._profiler = torch.profiler.profile()
            self._profiler.start()

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop after a few."""
        self._batches += 1
        if self._profiler is not None and self._batches == self._after + self._steps:
            self._write()

    def on_train_end(self, *_: Any) -> None:
        """Write the trace of a shorter run."""
        self._write()

    def on_exception(self, *_: Any) -> None:
        """Write what there is."""
        self._write()

    def _write(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._folder / "trace.json"))
            self._profiler = None
