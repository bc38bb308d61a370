"""A process that works on shards for a `ShardPool`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.catalog.tasks import perform

_REPORT_SECONDS = 0.2


def work(task: list[Any], report: Callable[[Any], None]) -> dict[str, Any]:
    kind, job = task
    last = time.monotonic()

    def now_and_then(done_bytes: int, steps: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            report([done_bytes, steps])

    return perform(kind, job, now_and_then, mapped=True)
