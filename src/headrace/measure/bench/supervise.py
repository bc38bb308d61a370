"""A process of a benchmark, from its start to its end: an outcome, whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.engine.machine import KernelKills
from headrace.jobs import start_python
from headrace.measure.bench.leftover import note_process
from headrace.measure.bench.watched import GRACE_SECONDS, Look, Sight, Stop, Watched
from headrace.measure.runs import Outcome, write_json

__all__ = ["GRACE_SECONDS", "Look", "Sight", "Stop", "supervise", "supervise_command"]


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
    measured = folder / "measured.json"
    measured.unlink(missing_ok=True)
    with (folder / "log.txt").open("ab") as log:
        kills = KernelKills()
        process = start_python(
            "headrace.measure.bench.worker",
            str(folder),
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        seen = Watched(process, folder, kills, watch)
        outcome = _follow(seen, folder, timeout_s, stop, grace_s)
    if outcome.status == "interrupted":
        return outcome
    try:
        found = json.loads(measured.read_text())
    except (OSError, ValueError):
        found = None
    if outcome.status == "complete" and found is None:
        code = process.returncode
        cause = f"it ended with exit code {code}; see log.txt"
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
    or of what it prints if it writes none.
    A text is run by a shell, and SIGTERM then goes to the whole group; else to the program alone,
    whose workers are its own affair.
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
            return Outcome("failed", cause, refused=True)
        seen = Watched(process, folder, kills, watch, whole_group=shell)
        outcome = _follow(seen, folder, timeout_s, stop, grace_s)
    if outcome.status == "complete" and process.returncode:
        last = _last_line(folder / "log.txt")
        cause = f"exit code {process.returncode}" + (f": {last}" if last else "")
        return replace(outcome, status="failed", cause=cause)
    return outcome


def _follow(seen: Watched, folder: Path, timeout_s: float, stop: Stop, grace_s: float) -> Outcome:
    """Watch until it ends or has to."""
    reason: tuple[str, str] | None = None
    begun = time.monotonic()
    try:
        note_process(folder, seen.process.pid)
        while reason is None and seen.process.poll() is None:
            look = seen.look()
            if time.monotonic() - begun > timeout_s:
                reason = "timed out", f"not done after {timeout_s:.0f} s"
            elif look is not None:
                reason = stop(look)
        if reason is not None and not seen.stop(grace_s):
            ignored = f"; it did not end within {grace_s:g} s of SIGTERM and was killed (SIGKILL)"
            reason = reason[0], reason[1] + ignored
    except KeyboardInterrupt:
        reason = "interrupted", "interrupted (Ctrl-C)"
    finally:
        seen.end()
        note_process(folder, None)
    wall = time.monotonic() - begun
    oom = seen.out_of_memory
    status, cause = reason or _ending(seen)
    return Outcome(
        status,
        cause,
        None,
        seen.memory.peak_rss,
        seen.memory.peak_anonymous,
        seen.memory.min_available,
        wall,
        oom and reason is None and status != "complete",
        seen.refused and status == "failed",
    )


def _ending(seen: Watched) -> tuple[str, str | None]:
    """The status of a process that has ended by itself, or of another's hand."""
    code = seen.process.returncode
    if code < 0:
        return "killed", seen.cause_of_death()
    if seen.error is not None:
        return "failed", seen.error
    if code and seen.out_of_memory:
        return "killed", "out of memory: the kernel killed a process of it"
    return "complete", None


def _last_line(path: Path, limit: int = 300) -> str:
    """The last line of a log that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")
