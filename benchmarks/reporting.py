"""What the benchmark scripts share: a folder for data, lines of output, the machine."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.measure.machine import machine_facts


@contextmanager
def data_folder(keep: str | None) -> Iterator[Path]:
    """The folder `keep`, or a temporary one that is removed at the end."""
    root = Path(keep or tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def machine() -> str:
    facts = machine_facts()
    gib = facts["memory_bytes"] / 2**30
    return (
        f"{facts['cores_allowed']} cores of {facts['cpu']}, {gib:.0f} GiB, Python {facts['python']}"
    )


def say(what: str, figure: str) -> None:
    print(f"{what:<34} {figure}", flush=True)


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """Median (lowest to highest)."""
    middle, least, most = (
        form.format(value) for value in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


def fresh_process(code: str, *arguments: str, stdin: str | None = None) -> Any:
    """Run a piece of code that prints JSON in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)
