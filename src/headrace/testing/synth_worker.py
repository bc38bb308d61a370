"""A process that writes shards for `synthesize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2

from headrace.testing.shards import ShardJob, write_job


def work(job: dict[str, Any], report: Callable[[Any], None]) -> dict[str, Any]:
    cv2.setNumThreads(1)  # the workers are the parallelism
    result = write_job(ShardJob.from_dict(job), report)
    return {name: getattr(result, name) for name in result.__slots__}
