"""A process that works on shards: tasks come in on stdin, progress goes out on stdout, in JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from headrace.catalog.tasks import perform
from headrace.errors import HeadraceError

_REPORT_SECONDS = 0.2


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _work(kind: str, job: dict[str, Any]) -> None:
    last = time.monotonic()

    def report(done_bytes: int, steps: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            _say({"bytes": done_bytes, "steps": steps})

    try:
        _say({"result": perform(kind, job, report, mapped=True)})
    except HeadraceError as error:
        _say({"error": error.to_dict()})


def main() -> None:
    """Perform tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for line in sys.stdin:
        try:
            _work(*json.loads(line))
        except BrokenPipeError:  # the parent is gone
            os._exit(1)


if __name__ == "__main__":
    main()
