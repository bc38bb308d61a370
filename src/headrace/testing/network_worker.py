"""A process that writes Parquet shards for `synthesize_network`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.testing.network_shards import NetworkJob, write_network_job


def work(job: dict[str, Any], _: Callable[[Any], None]) -> int:
    pa.set_cpu_count(1)  # the workers are the parallelism
    return write_network_job(NetworkJob(**job))
