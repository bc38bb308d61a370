"""Measuring: what the machine could do, and what a loader does.

The names here are what programs outside of this room may use; they are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.measure.bench.run import draw
    from headrace.measure.machine import machine_facts
    from headrace.measure.runs import (
        Outcome,
        RunReader,
        RunWriter,
        StepClock,
        new_run,
        read_run,
        summarise,
        write_json,
    )
    from headrace.measure.verdict import Verdict, run_verdict, verdict_text

__all__ = [
    "Outcome",
    "RunReader",
    "RunWriter",
    "StepClock",
    "Verdict",
    "draw",
    "machine_facts",
    "new_run",
    "read_run",
    "run_verdict",
    "summarise",
    "verdict_text",
    "write_json",
]

_HOMES = {
    "bench.run": ("draw",),
    "machine": ("machine_facts",),
    "runs": (
        *("Outcome", "RunReader", "RunWriter", "StepClock"),
        *("new_run", "read_run", "summarise", "write_json"),
    ),
    "verdict": ("Verdict", "run_verdict", "verdict_text"),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
