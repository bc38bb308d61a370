"""A running process group as its supervisor sees it: news, memory, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from headrace.engine.machine import KernelKills, available_memory
from headrace.measure.process_tree import MemoryWatch
from headrace.measure.runs import RunWriter

__all__ = ["GRACE_SECONDS", "Look", "Sight", "Stop", "Watched"]

#: From SIGTERM to SIGKILL. Enough to write what was measured; a process that hangs gets no more.
GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_GONE_SECONDS = 1.0  # some containers never reap what has ended, so this is no promise
_STEP_SECONDS = 0.1  # how soon the end of a process without news is noticed


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a running process."""

    phase: str
    batches: int
    samples_per_s: float
    stalled: float  #: share of the time that the step waited
    anonymous: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a rule that may end a run looks at."""

    available: int  #: bytes left, of the machine and of the run's control groups
    group_used: int  #: bytes that the run's innermost control group is charged with
    anonymous: int  #: bytes of the run
    idle_s: float  #: since the last batch, or since the last sign of another phase


#: A rule: a status and a cause, if the run must end.
Stop: TypeAlias = Callable[[Look], "tuple[str, str] | None"]


class Watched:
    """A process that was started in a group of its own."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        kills: KernelKills,
        watch: Callable[[Sight], None],
        *,
        whole_group: bool = False,
    ) -> None:
        self.process = process
        self.error: str | None = None
        self.refused = False
        self.memory = RunWriter(folder, memory=True)
        self._batches, self._log = folder / "batch_times.jsonl", folder / "log.txt"
        self._watch, self._kills, self._whole_group = watch, kills, whole_group
        self._tree = MemoryWatch(process.pid)
        self._selector = selectors.DefaultSelector()
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ)
        self._active = time.monotonic()
        self._looked = 0.0
        self._rest = b""
        self._last: dict[str, Any] = {"phase": "starting" if process.stdout else "running"}
        self._grown = 0

    def look(self) -> Look | None:
        """Wait a moment for news; twice a second a look at its memory."""
        self._kills.note(self.process.pid)
        if self._selector.select(_STEP_SECONDS):
            self._drain()
            if not self._last.get("done"):
                time.sleep(0.02)  # news come in bursts
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return None
        self._looked = now
        held = self._tree.now()
        if not held.rss:  # it has just ended
            return None
        if self.process.stdout is None:
            self._see_growth()
        groups = self._kills.note(self.process.pid)
        available = min(available_memory(), *(group.left() for group in groups), 1 << 62)
        used = max((group.used() for group in groups), default=0)
        self.memory.memory(anonymous=held.anonymous, available=available, rss=held.rss, group=used)
        last = self._last
        self._watch(
            Sight(
                last["phase"],
                last.get("batches", 0),
                last.get("samples_per_s", 0.0),
                last.get("stalled", 0.0),
                held.anonymous,
            )
        )
        return Look(available, used, held.anonymous, now - self._active)

    def _drain(self) -> None:
        """Read what the process has said."""
        out = self.process.stdout
        while out is not None and (data := out.read(1 << 16)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.error = message.get("error", self.error)
                self.refused = message.get("refused", self.refused)
                before = self._last
                self._last = {**before, **message}
                if any(before.get(k) != self._last.get(k) for k in ("phase", "batches", "alive")):
                    self._active = time.monotonic()
        if out is not None and data == b"":  # closed: nothing more comes
            with contextlib.suppress(KeyError):
                self._selector.unregister(out)

    def _see_growth(self) -> None:
        """A program of another's is alive as long as its record of batches grows.

        One that keeps none is alive as long as it prints.
        """
        for path in (self._batches, self._log):
            try:
                size = path.stat().st_size
            except OSError:
                continue
            if size != self._grown:
                self._active, self._grown = time.monotonic(), size
            return

    def stop(self, grace_s: float) -> bool:
        """Ask it to end; whether it did within the grace time."""
        send = os.killpg if self._whole_group else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(self.process.pid, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                return True
            if self._selector.select(_STEP_SECONDS):
                self._drain()
        return False

    def end(self) -> None:
        """End the process and everything that it started, if they have not ended; last news."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._wait_for_group()
        self._drain()
        self._selector.close()
        with contextlib.suppress(OSError):  # a full disk was complained of before
            self.memory.close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _wait_for_group(self) -> None:
        """Others of the group take a moment to give their memory back, which the next run needs."""
        until = time.monotonic() + _GONE_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < until:
                os.killpg(self.process.pid, 0)
                time.sleep(0.01)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it, or a process of it, for want of memory."""
        if self._kills.in_groups():
            return True
        return self.process.returncode == -signal.SIGKILL and self._kills.on_machine() > 0

    def cause_of_death(self) -> str:
        """The signal that killed it, and whose it was."""
        number = -self.process.returncode
        name = signal.Signals(number).name
        if self.out_of_memory:
            return f"out of memory: the kernel killed it ({name})"
        hint = ", perhaps by the kernel for want of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number} ({name}){hint}"
