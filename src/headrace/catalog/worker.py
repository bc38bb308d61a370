"""A process that scans shards: jobs come in on stdin, progress goes out on stdout, in JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.catalog.scan import ScanJob, cannot_write, scan_shard
from headrace.errors import HeadraceError
from headrace.formats.features import read_features
from headrace.formats.layout import Part, plan

_REPORT_SECONDS = 0.2


@lru_cache(maxsize=4)
def _parts(folder: str) -> list[Part]:
    return plan(read_features(Path(folder) / "features.json"))


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _work(job: ScanJob) -> None:
    last = time.monotonic()

    def report(done_bytes: int, steps: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            _say({"bytes": done_bytes, "steps": steps, "done": False})

    try:
        result = scan_shard(job, _parts(job.folder), report)
    except HeadraceError as error:
        _say({"error": error.to_dict()})
    except OSError as error:
        _say({"error": cannot_write(error, job.out).to_dict()})
    else:
        _say({"steps": result.steps, "done": True})


def main() -> None:
    """Scan until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for line in sys.stdin:
        try:
            _work(ScanJob(**json.loads(line)))
        except BrokenPipeError:  # the parent is gone
            os._exit(1)


if __name__ == "__main__":
    main()
