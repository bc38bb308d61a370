"""Runs one request in a fresh process, watches it, and says how it ended, whatever happens."""

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
from typing import Any

from headrace.engine.memory import available_memory
from headrace.measure.archive import write_json
from headrace.measure.process_tree import MemoryWatch
from headrace.processes import start_python

__all__ = ["Outcome", "Sight", "supervise"]

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    status: str  #: complete, failed, killed, timed out, incomplete (interrupted)
    cause: str | None = None
    measured: dict[str, Any] | None = None  #: what the process found, if it came to that
    peak_rss: int = 0
    peak_anonymous: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a running process."""

    phase: str
    batches: int
    samples_per_s: float
    stalled: float  #: share of the time that the step waited
    anonymous: int


def supervise(
    folder: Path,
    request: dict[str, Any],
    *,
    timeout_s: float,
    watch: Callable[[Sight], None] = lambda _: None,
) -> Outcome:
    """Carry out a request; its memory is written to `memory.jsonl` as it runs."""
    write_json(folder / "request.json", request)
    before = _kills()
    begun = time.monotonic()
    with (folder / "log.txt").open("ab") as log, (folder / "memory.jsonl").open("w") as memory:
        process = start_python(
            "headrace.measure.bench.worker",
            str(folder),
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        seen = _Seen(process, memory)
        try:
            while process.poll() is None:
                seen.look(watch)
                if time.monotonic() - begun > timeout_s:
                    seen.kill()
                    return seen.outcome("timed out", f"not done after {timeout_s:.0f} s")
        except KeyboardInterrupt:
            return seen.outcome("incomplete", "interrupted (Ctrl-C)")
        finally:
            seen.kill()
        seen.drain()
    if seen.error is not None:
        return seen.outcome("failed", seen.error)
    if process.returncode < 0:
        return seen.outcome("killed", _cause(-process.returncode, _kills() - before))
    try:
        measured = json.loads((folder / "measured.json").read_text())
    except OSError:
        return seen.outcome("failed", f"it ended with exit code {process.returncode}; see log.txt")
    return seen.outcome("complete", None, measured)


class _Seen:
    """What has been seen of a process."""

    def __init__(self, process: subprocess.Popen[bytes], memory: Any) -> None:
        assert process.stdout is not None
        self._process, self._memory = process, memory
        self._watch = MemoryWatch(process.pid)
        self._out = process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._begun = time.monotonic()
        self._looked = 0.0
        self._rest = b""
        self._last: dict[str, Any] = {"phase": "starting"}
        self._rss = self._anonymous = 0
        self.error: str | None = None

    def look(self, watch: Callable[[Sight], None]) -> None:
        """Wait a moment for news, and look at its memory from time to time."""
        if self._selector.select(_LOOK_SECONDS):
            self.drain()
            if not self._last.get("done"):
                time.sleep(0.02)  # news come in bursts
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        held = self._watch.now()
        if not held.rss:  # it has just ended
            return
        self._rss, self._anonymous = max(self._rss, held.rss), max(self._anonymous, held.anonymous)
        line = {
            "t_s": round(now - self._begun, 3),
            "rss_mb": round(held.rss / 1e6, 1),
            "anon_mb": round(held.anonymous / 1e6, 1),
            "available_mb": round(available_memory() / 1e6, 1),
        }
        self._memory.write(json.dumps(line) + "\n")
        self._memory.flush()
        last = self._last
        watch(
            Sight(
                last["phase"],
                last.get("batches", 0),
                last.get("samples_per_s", 0.0),
                last.get("stalled", 0.0),
                held.anonymous,
            )
        )

    def drain(self) -> None:
        """Read what the process has said."""
        while data := self._out.read(1 << 16):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.error = message.get("error", self.error)
                self._last = {**self._last, **message}

    def kill(self) -> None:
        """End the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()

    def outcome(
        self, status: str, cause: str | None, measured: dict[str, Any] | None = None
    ) -> Outcome:
        """How it ended, with what was seen."""
        self._out.close()
        return Outcome(status, cause, measured, self._rss, self._anonymous)


def _kills() -> int:
    """Processes of our control group that the kernel has killed for want of memory so far."""
    try:
        inner = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
        events = Path("/sys/fs/cgroup") / inner.lstrip("/") / "memory.events"
        counts = dict(line.split() for line in events.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError, IndexError):
        return 0


def _cause(number: int, kills: int) -> str:
    name = signal.Signals(number).name
    if kills:
        return f"out of memory: the kernel killed it ({name})"
    hint = ", perhaps by the kernel for want of memory" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){hint}"
