"""A worker of `synthesize`: reads jobs from stdin and writes shards until stdin ends."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import cv2

from headrace.errors import HeadraceError
from headrace.testing.shards import ShardJob, write_job


def main() -> None:
    """One line of JSON in, several out: the frames of every episode, then result or error."""
    cv2.setNumThreads(1)  # the workers are the parallelism
    # What a library prints must not end up between the messages.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message).encode() + b"\n")

    for line in sys.stdin:
        job = ShardJob.from_dict(json.loads(line))
        try:
            result = write_job(job, lambda frames: send({"frames_done": frames}))
            send({"result": {name: getattr(result, name) for name in result.__slots__}})
        except HeadraceError as error:
            send({"error": error.to_dict()})


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)  # the parent is gone
