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
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.machine import allowed_cpus
from headrace.errors import DatasetError, HeadraceError, UnknownDatasetError, UsageError
from headrace.jobs import ProcessPool, WorkerLost
from headrace.testing.picture import seeded
from headrace.testing.synth import Progress
from headrace.testing.writer import clear_errors, staged

__all__ = ["FILES", "FULL_ROWS", "SCHEMA", "SynthesizedRows", "shard_table", "synthesize_network"]


FILES = {"train": 180, "test": 20}
#: Rows per file with which the 200 files have 1.8 GB.
FULL_ROWS = 425_000
_ROWS = 4096
_ROW_GROUP = 1 << 20  # rows; pyarrow's own default
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
    for name, value in (("rows", rows), ("row_group", row_group), ("workers", workers)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}", remedy="Give at least 1")
    chosen = _choose(files, only)
    targets = {split: Path(root) / split for split in chosen}
    for target in targets.values():
        _check_replaceable(target)
    sizes = dict.fromkeys(chosen, 0)
    with contextlib.ExitStack() as stack:
        folders = {split: stack.enter_context(staged(target)) for split, target in targets.items()}
        jobs = []
        number = 0
        for split, count in files.items():
            if split in chosen:
                jobs += [
                    _Job(split, shard, number + shard, rows, row_group, seed, str(folders[split]))
                    for shard in range(count)
                ]
            number += count
        count = workers if workers is not None else allowed_cpus()
        done = 0
        for job, size in _run(jobs, count):
            sizes[job.split] += size
            done += rows
            if report is not None:
                report(done, rows * len(jobs), job.split)
    return [
        SynthesizedRows(split, targets[split], files[split], files[split] * rows, sizes[split])
        for split in chosen
    ]


def _run(jobs: list[_Job], workers: int) -> Generator[tuple[_Job, int], None, None]:
    if min(workers, len(jobs)) < 2 or sum(job.rows for job in jobs) < _FEW_ROWS:
        for job in jobs:
            yield job, _write_shard(job)
        return
    with ProcessPool(f"{__name__}:work", min(workers, len(jobs))) as pool:
        try:
            for number, size in pool.run([asdict(job) for job in jobs], lambda *_: None):
                yield jobs[number], size
        except WorkerLost as lost:
            raise HeadraceError(str(lost), remedy="If memory ran out, use workers=1") from None


def _choose(files: Mapping[str, int], only: Iterable[str] | None) -> list[str]:
    if only is None:
        return list(files)
    wanted = [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if name not in files:
            raise UnknownDatasetError(
                f"{name!r} is not in the preset 'network'", remedy=f"It has: {', '.join(files)}"
            )
    if not wanted:
        raise UsageError("only is empty", remedy=f"Name some of: {', '.join(files)}")
    return [name for name in files if name in wanted]


def _check_replaceable(target: Path) -> None:
    """Only what was synthesized is ever replaced."""
    if not target.exists():
        return
    try:
        inside = list(target.iterdir())
        ours = all(_MARK in (pq.read_schema(file).metadata or {}) for file in inside)
    except (OSError, pa.ArrowInvalid):
        ours = False
    if not ours:
        raise DatasetError(
            "the folder exists and was not synthesized",
            file=str(target),
            remedy="Choose another folder, or move this one away",
        )


# -- one shard, written in this process or in another ----------------------------------------------

# In the metadata of every file: this one was synthesized, and may be replaced.
_MARK = b"headrace.synth"


@dataclass(frozen=True, slots=True)
class _Job:
    """One shard to write, as values that JSON can hold."""

    split: str
    shard: int  #: in the split
    number: int  #: over all splits, which follow each other in time
    rows: int
    row_group: int
    seed: int
    folder: str


def _write_shard(job: _Job) -> int:
    """Write the shard; its size in bytes."""
    table = shard_table(job.seed, job.number, job.rows)
    table = table.replace_schema_metadata({_MARK: f"seed {job.seed}".encode()})
    path = Path(job.folder) / f"shard_{job.shard:04d}.parquet"
    with clear_errors(path):
        pq.write_table(table, path, compression="snappy", row_group_size=job.row_group)
        return path.stat().st_size


def work(job: dict[str, Any], _: Callable[[Any], None]) -> int:
    pa.set_cpu_count(1)  # the workers are the parallelism
    return _write_shard(_Job(**job))


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


@dataclass(frozen=True)
class _World:
    """The probes and destinations of a seed."""

    seed: int

    @cached_property
    def _rng(self) -> np.random.Generator:
        return seeded(self.seed, "network")

    @cached_property
    def places(self) -> _Floats:
        """Where everybody is on a sphere, probes first."""
        place = self._rng.standard_normal((_PROBES + _DESTINATIONS, 3))
        length: _Floats = np.sqrt((place**2).sum(axis=1, keepdims=True))
        return place / length

    @cached_property
    def last_mile(self) -> _Floats:
        """Milliseconds that every answer to a probe takes at least."""
        return np.exp(seeded(self.seed, "last mile").normal(1.2, 0.8, _PROBES))

    @cached_property
    def popularity(self) -> _Floats:
        """How often each destination is measured, as a distribution to look up in."""
        weights = 1 / np.arange(1, _DESTINATIONS + 1) ** 0.9
        share: _Floats = np.cumsum(weights) / weights.sum()
        return share

    @cached_property
    def texts(self) -> tuple[Any, Any]:
        """The addresses of everybody, of both versions."""
        rng = seeded(self.seed, "addresses")
        count = _PROBES + _DESTINATIONS
        four = rng.integers(0x0B000000, 0xDF000000, count)
        six = rng.integers(0, 1 << 62, (count, 2))
        return (
            pa.array([str(ipaddress.IPv4Address(int(value))) for value in four]),
            pa.array(
                [
                    str(ipaddress.IPv6Address(0x2001 << 112 | int(a) >> 14 << 64 | int(b)))
                    for a, b in six
                ]
            ),
        )

    def base_rtt(self, probe: npt.NDArray[np.int64], destination: npt.NDArray[np.int64]) -> _Floats:
        """Milliseconds between two, without noise: light in a fibre, and the last mile."""
        cosine = (self.places[probe] * self.places[_PROBES + destination]).sum(axis=1)
        kilometres = 6371 * np.arccos(np.clip(cosine, -1, 1))
        millis: _Floats = self.last_mile[probe] + 2 * 1.4 * kilometres / 200
        return millis


@lru_cache(maxsize=2)
def _world(seed: int) -> _World:
    return _World(seed)


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
            _addresses(world, probe, six, rng.random(rows) < _NO_SRC),
            _addresses(world, _PROBES + destination, six, rng.random(rows) < _NO_DST),
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


def _addresses(
    world: _World,
    who: npt.NDArray[np.int64],
    six: npt.NDArray[np.bool_],
    missing: npt.NDArray[np.bool_],
) -> Any:
    pool = pa.concat_arrays(world.texts)
    codes = pa.array(np.where(six, len(world.texts[0]), 0) + who, mask=missing)
    return pool.take(codes)
