"""One Parquet shard of network measurements, written in this process or in another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.testing.network import shard_table
from headrace.testing.writer import clear_errors

__all__ = ["MARK", "NetworkJob", "write_network_job"]

#: In the metadata of every file: this one was synthesized, and may be replaced.
MARK = b"headrace.synth"


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """One shard to write; plain values, so that it can cross a pipe."""

    split: str
    shard: int  #: in the split
    number: int  #: over all splits, which follow each other in time
    rows: int
    row_group: int
    seed: int
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def write_network_job(job: NetworkJob) -> int:
    """Write the shard and say how many bytes it has."""
    table = shard_table(job.seed, job.number, job.rows)
    table = table.replace_schema_metadata({MARK: f"seed {job.seed}".encode()})
    path = Path(job.folder) / f"shard_{job.shard:04d}.parquet"
    with clear_errors(path):
        pq.write_table(table, path, compression="snappy", row_group_size=job.row_group)
        return path.stat().st_size
