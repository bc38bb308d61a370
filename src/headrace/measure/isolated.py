"""Programs in a process group of their own, watched from start to end: always an outcome.

A benchmark runs in a fresh process, so that memory, page cache and the global state of frameworks
are its own, and so that it can be stopped, killed or run out of memory without taking the caller
along. `supervise` runs a request in `headrace.measure.worker`; `supervise_command` any program.

A group outlives a supervisor that the kernel has killed, and would hold memory and CPUs while the
next run is measured. So the process of a run is noted in its folder, and `end_leftovers` finds and
ends those that nobody watches any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from headrace.engine.machine import KernelKills, available_memory
from headrace.jobs import start_python
from headrace.measure.machine import MemoryWatch
from headrace.measure.runs import BATCHES, MEASURED, Outcome, RunWriter, write_json

#: From SIGTERM to SIGKILL. Enough to write what was measured; a process that hangs gets no more.
GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_GONE_SECONDS = 1.0  # some containers never reap what has ended, so this is not a promise
_STEP_SECONDS = 0.1  # how soon the end of a process without messages is noticed
_NOTE = "process"  # the file that names the process of a run


@dataclass(frozen=True, slots=True)
class Sight:
    """What a person who watches is shown of a running process."""

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


def supervise(
    folder: Path,
    request: dict[str, Any],
    *,
    timeout_s: float,
    watch: Callable[[Sight], None] = lambda _: None,
    stop: Stop = lambda _: None,
    grace_s: float = GRACE_SECONDS,
) -> Outcome:
    """Carry out a request in a fresh process; its memory is written to `memory.jsonl`.

    `stop` looks at it twice a second and may end it, with a status and a cause: SIGTERM first, on
    which it writes what it has measured, and SIGKILL to its group after the grace time.
    """
    write_json(folder / "request.json", request)
    measured = folder / MEASURED
    measured.unlink(missing_ok=True)
    with (folder / "log.txt").open("ab") as log:
        kills = KernelKills()
        process = start_python(
            "headrace.measure.worker",
            str(folder),
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        outcome = _follow(_Watched(process, folder, kills, watch), timeout_s, stop, grace_s)
    if outcome.status == "interrupted":
        return outcome
    try:
        found = json.loads(measured.read_text())
    except (OSError, ValueError):
        found = None
    if outcome.status == "complete" and found is None:
        cause = f"it ended with exit code {process.returncode}; see log.txt"
        return replace(outcome, status="failed", cause=cause)
    return replace(outcome, measured=found)


def supervise_command(
    folder: Path,
    command: str | Sequence[str],
    *,
    timeout_s: float,
    watch: Callable[[Sight], None] = lambda _: None,
    stop: Stop = lambda _: None,
    grace_s: float = GRACE_SECONDS,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run any program in a process group of its own; what it prints goes to `log.txt`.

    It passes if it exits with 0. That it is alive is seen by the growth of its `batch_times.jsonl`,
    or of what it prints if it writes none. A text is run by a shell, and SIGTERM then goes to the
    whole group; else to the program alone, which ends its own workers.
    """
    shell = isinstance(command, str)
    with (folder / "log.txt").open("ab") as log:
        kills = KernelKills()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command] if isinstance(command, str) else list(command),
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        except OSError as error:
            name = command if isinstance(command, str) else command[0]
            cause = f"{name!r} cannot be run: {error.strerror}"
            return Outcome("invalid configuration", cause)
        seen = _Watched(process, folder, kills, watch, whole_group=shell)
        outcome = _follow(seen, timeout_s, stop, grace_s)
    if outcome.status == "complete" and process.returncode:
        last = _last_line(folder / "log.txt")
        cause = f"exit code {process.returncode}" + (f": {last}" if last else "")
        return replace(outcome, status="failed", cause=cause)
    return outcome


def end_leftovers(runs: Path) -> list[int]:
    """End the process groups of runs in a folder that nobody watches any more; their numbers."""
    ended = []
    for note in runs.glob(f"*/{_NOTE}"):
        with contextlib.suppress(OSError, ValueError):
            pid, started = note.read_text().split()
            # A number that another process has got since is left alone.
            if _started(int(pid)) == started:
                os.killpg(int(pid), signal.SIGKILL)
                ended.append(int(pid))
                _wait_for_group(int(pid))
        note.unlink(missing_ok=True)
    return ended


def _wait_for_group(group: int) -> None:
    """A killed group takes a moment to give its memory back, which the next run needs."""
    until = time.monotonic() + _GONE_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.01)


def _started(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks, which no change of the clock moves."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _follow(seen: _Watched, timeout_s: float, stop: Stop, grace_s: float) -> Outcome:
    """Watch until it ends or has to."""
    reason: tuple[str, str] | None = None
    begun = time.monotonic()
    try:
        seen.note()
        while reason is None and seen.process.poll() is None:
            look = seen.look()
            if time.monotonic() - begun > timeout_s:
                reason = "timed out", f"not done after {timeout_s:.0f} s ({seen.phase})"
            elif look is not None:
                reason = stop(look)
        if reason is not None and not seen.stop(grace_s):
            ignored = f"; it did not end within {grace_s:g} s of SIGTERM and was killed (SIGKILL)"
            reason = reason[0], reason[1] + ignored
    except KeyboardInterrupt:
        reason = "interrupted", "interrupted (Ctrl-C)"
    finally:
        seen.end()
    status, cause = reason or seen.ending()
    return Outcome(
        status,
        cause,
        peak_rss=seen.memory.peak_rss,
        peak_anonymous=seen.memory.peak_anonymous,
        min_available=seen.memory.min_available,
        wall_s=time.monotonic() - begun,
    )


class _Watched:
    """A process that was started in a group of its own: its messages, memory and end."""

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
        self._folder = folder
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

    @property
    def phase(self) -> str:
        """What it does now, in its own words."""
        return str(self._last["phase"])

    def note(self) -> None:
        """Write down the process, for `end_leftovers`."""
        if (started := _started(self.process.pid)) is not None:
            (self._folder / _NOTE).write_text(f"{self.process.pid} {started}\n")

    def look(self) -> Look | None:
        """Wait a moment for messages; twice a second, look at its memory."""
        self._kills.note(self.process.pid)
        if self._selector.select(_STEP_SECONDS):
            self._drain()
            if not self._last.get("done"):
                time.sleep(0.02)  # messages come in bursts
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
        """Read the messages of the process."""
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
        """Another program is alive as long as its record of batches grows, or its output."""
        for name in (BATCHES, "log.txt"):
            try:
                size = (self._folder / name).stat().st_size
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
        """End the process and everything that it started, if they have not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _wait_for_group(self.process.pid)
        self._drain()
        self._selector.close()
        with contextlib.suppress(OSError):  # a full disk was reported before
            self.memory.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        (self._folder / _NOTE).unlink(missing_ok=True)

    def ending(self) -> tuple[str, str | None]:
        """The status and cause of a process that nobody here has ended."""
        code, error = self.process.returncode, self.error
        name = signal.Signals(-code).name if code < 0 else ""
        by_kernel = self._kills.in_groups() or (name == "SIGKILL" and self._kills.on_machine() > 0)
        if by_kernel and (code or error is not None):
            if name:
                return "oom-killed", f"out of memory: the kernel killed it ({name})"
            return "oom-killed", error or "out of memory: the kernel killed a process of it"
        if name:
            hint = ", perhaps by the kernel because memory ran out" if name == "SIGKILL" else ""
            return "killed", f"killed by signal {-code} ({name}){hint}"
        if error is not None:
            return "invalid configuration" if self.refused else "failed", error
        return "complete", None


def _last_line(path: Path, limit: int = 300) -> str:
    """The last line of a log that is not empty."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")
