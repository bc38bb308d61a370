"""Measuring: what the machine could do, and what a loader does.

The names here are what programs outside of this room may use; they are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.measure import theme
    from headrace.measure.bench import draw_report
    from headrace.measure.clock import StepClock
    from headrace.measure.machine import machine_facts
    from headrace.measure.results import read_run, summarise
    from headrace.measure.runs import Outcome, RunReader, RunWriter, new_run, write_json
    from headrace.measure.verdict import Verdict, give_verdict, run_verdict, verdict_text

__all__ = [
    "Outcome",
    "RunReader",
    "RunWriter",
    "StepClock",
    "Verdict",
    "draw_report",
    "give_verdict",
    "machine_facts",
    "new_run",
    "read_run",
    "run_verdict",
    "summarise",
    "theme",
    "verdict_text",
    "write_json",
]

_HOMES = {
    "bench": ("draw_report",),
    "clock": ("StepClock",),
    "machine": ("machine_facts",),
    "results": ("read_run", "summarise"),
    "runs": ("Outcome", "RunReader", "RunWriter", "new_run", "write_json"),
    "theme": ("theme",),
    "verdict": ("Verdict", "give_verdict", "run_verdict", "verdict_text"),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{home}")
    return module if home == name else getattr(module, name)
