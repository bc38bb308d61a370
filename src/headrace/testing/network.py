"""Network measurements as Parquet files: `synthesize_network`.

    for made in synthesize_network("data", rows=425_000):    # 1.8 GB
        print(made.name, made.files, made.rows)

`data/train` has 180 files and `data/test` 20. The same seed gives the same rows whatever the number
of workers. A split appears when it is complete.

A few hundred probes measure a few thousand destinations, some of them far more often than others.
A round-trip time follows the distance between the two and the probe's last mile, with log-normal
noise and now and then a queue; some measurements fail (-1), some addresses are missing. Times are
sorted within a shard and from shard to shard.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.testing.picture import seeded
from headrace.testing.synth import (
    Progress,
    check_positive,
    check_replaceable,
    choose,
    run_jobs,
)
from headrace.testing.writer import clear_errors, staged

FILES = {"train": 180, "test": 20}
#: Rows per file with which the 200 files have 1.8 GB.
FULL_ROWS = 425_000
_ROWS = 4096
_ROW_GROUP = 1 << 20  # rows; pyarrow's own default
_MARK = b"headrace.synth"  # in the metadata of every file: this one may be replaced
_FEW_ROWS = 200_000  # done here in less time than it takes to start a worker


@dataclass(frozen=True, slots=True)
class SynthesizedRows:
    """A split that was written."""

    name: str
    path: Path
    files: int
    rows: int
    bytes: int


def synthesize_network(
    root: str | os.PathLike[str],
    *,
    rows: int = _ROWS,
    row_group: int = _ROW_GROUP,
    files: Mapping[str, int] = FILES,
    seed: int = 0,
    only: Iterable[str] | None = None,
    workers: int | None = None,
    report: Progress | None = None,
) -> list[SynthesizedRows]:
    """Write the splits below `root`, with `rows` rows in each file; what was written.

    `report` counts rows. A split that is already there is replaced if it was synthesized, and
    is otherwise an error.
    """
    check_positive(rows=rows, row_group=row_group, workers=workers)
    chosen = choose("network", files, only)
    targets = {split: Path(root) / split for split in chosen}
    for target in targets.values():
        check_replaceable(target, _was_synthesized)
    first = dict(zip(files, accumulate(files.values(), initial=0), strict=False))
    sizes = dict.fromkeys(chosen, 0)
    with contextlib.ExitStack() as stack:
        jobs = []
        for split, target in targets.items():
            folder = str(stack.enter_context(staged(target)))
            jobs += [
                asdict(_Job(split, shard, first[split] + shard, rows, row_group, seed, folder))
                for shard in range(files[split])
            ]
        total = rows * len(jobs)
        few = total < _FEW_ROWS
        running = run_jobs(write_job, jobs, workers, few=few, progress=lambda *_: None)
        with contextlib.closing(running) as results:
            for done, (number, size) in enumerate(results, 1):
                split = jobs[number]["dataset"]
                sizes[split] += size
                if report is not None:
                    report(done * rows, total, split)
    return [
        SynthesizedRows(split, targets[split], files[split], files[split] * rows, sizes[split])
        for split in chosen
    ]


def _was_synthesized(target: Path) -> bool:
    return all(_MARK in (pq.read_schema(file).metadata or {}) for file in target.iterdir())


@dataclass(frozen=True, slots=True)
class _Job:
    """One shard to write, as values that JSON can hold."""

    dataset: str  #: the split
    shard: int  #: in the split
    number: int  #: over all splits, which follow each other in time
    rows: int
    row_group: int
    seed: int
    folder: str


def write_job(values: dict[str, Any], _: Callable[[Any], None]) -> int:
    """Write a shard; its size in bytes."""
    job = _Job(**values)
    table = shard_table(job.seed, job.number, job.rows)
    table = table.replace_schema_metadata({_MARK: f"seed {job.seed}".encode()})
    path = Path(job.folder) / f"shard_{job.shard:04d}.parquet"
    with clear_errors(path):
        pq.write_table(table, path, compression="snappy", row_group_size=job.row_group)
        return path.stat().st_size


# -- its rows --------------------------------------------------------------------------------------

#: The five columns that are needed, between two that are not.
SCHEMA = pa.schema(
    [
        ("probe_id", pa.int64()),
        ("event_time", pa.timestamp("ns", tz="UTC")),
        ("src_addr", pa.string()),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int64()),
        ("rtt", pa.float64()),
        ("kind", pa.string()),
    ]
)

_PROBES, _DESTINATIONS = 300, 5000
_START = 1_704_067_200_000_000_000  # 2024 begins, in nanoseconds
_GAP = 500_000_000  # nanoseconds between measurements, on average
_PAUSES = 1e-3  # of the gaps: minutes to hours
_SIX = 0.3  # of the measurements
_FAILED, _NO_SRC, _NO_DST = 0.03, 0.002, 0.01
_KINDS = ("ping", "traceroute")

_Floats = npt.NDArray[np.float64]


class _World:
    """The probes and destinations of a seed."""

    def __init__(self, seed: int) -> None:
        count = _PROBES + _DESTINATIONS
        place = seeded(seed, "network").standard_normal((count, 3))
        #: Where everybody is on a sphere, probes first.
        self.places: _Floats = place / np.sqrt((place**2).sum(axis=1, keepdims=True))
        #: Milliseconds that every answer to a probe takes at least.
        self.last_mile: _Floats = np.exp(seeded(seed, "last mile").normal(1.2, 0.8, _PROBES))
        weights = 1 / np.arange(1, _DESTINATIONS + 1) ** 0.9
        #: How often each destination is measured, as a distribution to look up in.
        self.popularity: _Floats = np.cumsum(weights) / weights.sum()
        rng = seeded(seed, "addresses")
        four = rng.integers(0x0B000000, 0xDF000000, count)
        six = rng.integers(0, 1 << 62, (count, 2))
        self._addresses = pa.array(
            [str(ipaddress.IPv4Address(int(value))) for value in four]
            + [
                str(ipaddress.IPv6Address(0x2001 << 112 | int(a) >> 14 << 64 | int(b)))
                for a, b in six
            ]
        )

    def addresses(
        self,
        who: npt.NDArray[np.int64],
        six: npt.NDArray[np.bool_],
        missing: npt.NDArray[np.bool_],
    ) -> Any:
        """Addresses of version six or four; null where missing."""
        places = np.where(six, _PROBES + _DESTINATIONS, 0) + who
        return self._addresses.take(pa.array(places, mask=missing))

    def base_rtt(self, probe: npt.NDArray[np.int64], destination: npt.NDArray[np.int64]) -> _Floats:
        """Milliseconds between two, without noise: light in a fibre, and the last mile."""
        cosine = (self.places[probe] * self.places[_PROBES + destination]).sum(axis=1)
        kilometres = 6371 * np.arccos(np.clip(cosine, -1, 1))
        millis: _Floats = self.last_mile[probe] + 2 * 1.4 * kilometres / 200
        return millis


_world = lru_cache(maxsize=2)(_World)


def shard_table(seed: int, number: int, rows: int) -> Any:
    """The rows of shard `number`, counted over all splits, as an Arrow table."""
    world, rng = _world(seed), seeded(seed, "shard", number)
    probe = rng.integers(0, _PROBES, rows)
    destination = np.searchsorted(world.popularity, rng.random(rows)).clip(0, _DESTINATIONS - 1)
    six = rng.random(rows) < _SIX
    rtt = world.base_rtt(probe, destination) * np.exp(rng.normal(0, 0.12, rows))
    queued = rng.random(rows) < 0.05
    rtt[queued] += np.exp(rng.normal(3, 1.2, int(queued.sum())))
    rtt[rng.random(rows) < _FAILED] = -1.0
    return pa.table(
        [
            pa.array(1000 + probe),
            pa.array(_times(rng, number, rows), pa.timestamp("ns", tz="UTC")),
            world.addresses(probe, six, rng.random(rows) < _NO_SRC),
            world.addresses(_PROBES + destination, six, rng.random(rows) < _NO_DST),
            pa.array(np.where(six, 6, 4).astype(np.int64)),
            pa.array(rtt),
            pa.DictionaryArray.from_arrays(
                pa.array((rng.random(rows) < 0.2).astype(np.int32)), pa.array(_KINDS)
            ).cast(pa.string()),
        ],
        schema=SCHEMA,
    )


def _times(rng: np.random.Generator, number: int, rows: int) -> npt.NDArray[np.int64]:
    """Sorted, within the shard's share of the time."""
    gaps = rng.exponential(1.0, rows)
    pauses = rng.random(rows) < _PAUSES
    gaps[pauses] *= np.exp(rng.normal(6, 1, int(pauses.sum())))
    share = rows * _GAP
    moment = np.cumsum(gaps)
    within: npt.NDArray[np.int64] = (moment / moment[-1] * (share - 1)).astype(np.int64)
    return within + (_START + number * share)
