"""A trace of a run: what each worker and the loop did when, as trace events (JSON).

Browsers open it (ui.perfetto.dev, chrome://tracing), and TensorBoard with a plugin that reads such
files. It lies where those look: RUN/plugins/profile/RUN/HOST.pt.trace.json.gz.
"""

from __future__ import annotations

import gzip
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.engine.statistics import Span
from headrace.files import replacing

#: Seconds that are traced, from the end of the warm-up: enough to see what repeats, and some ten
#: thousand spans a CPU.
TRACED_SECONDS = 5.0


def trace_file(folder: Path) -> Path:
    """Where the trace of a run lies."""
    host = re.sub(r"[^\w-]+", "_", platform.node()) or "host"
    name = folder.resolve().name
    return folder / "plugins" / "profile" / name / f"{host}.pt.trace.json.gz"


def write_trace(folder: Path, rows: Mapping[str, Sequence[Span]]) -> Path:
    """Write a row of spans for each name, from the earliest on; where it was written."""
    path = trace_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"displayTimeUnit": "ms", "traceEvents": list(trace_events(rows))}
    with replacing(path, durable=False) as file:
        file.write(gzip.compress(json.dumps(body, separators=(",", ":")).encode(), 6))
    return path


def trace_events(rows: Mapping[str, Sequence[Span]]) -> Iterator[dict[str, Any]]:
    """Events of the trace-event format: times in microseconds, a thread for each row.

    >>> [e["ts"] for e in trace_events({"loop": [("wait", 7.0, 7.5)]}) if e["ph"] == "X"]
    [0]
    """
    begun = min((start for spans in rows.values() for _, start, _ in spans), default=0.0)
    yield {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "headrace"}}
    for number, (name, spans) in enumerate(rows.items()):
        for key, value in (
            ("thread_name", {"name": name}),
            ("thread_sort_index", {"sort_index": number}),
        ):
            yield {"ph": "M", "pid": 0, "tid": number, "name": key, "args": value}
        for stage, start, end in spans:
            # Whole numbers, so that what follows on something does not seem to lie inside it.
            first, last = (round((at - begun) * 1e6) for at in (start, end))
            if last > first:
                kind = "loop" if number == 0 else "worker"
                place = {"pid": 0, "tid": number, "ts": first, "dur": last - first}
                yield {"ph": "X", "name": stage, "cat": kind, **place}
