"""Write network measurements as Parquet files: `synthesize_network`.

    for made in synthesize_network("data", rows=425_000):    # 1.8 GB
        print(made.name, made.files, made.rows)

`data/train` has 180 files and `data/test` 20. The same seed gives the same rows whatever the number
of workers. A split appears when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import DatasetError, HeadraceError, UnknownDatasetError, UsageError
from headrace.jobs import ProcessPool, WorkerLost, allowed_cpus
from headrace.testing.network_shards import MARK, NetworkJob, write_network_job
from headrace.testing.synth import Progress
from headrace.testing.writer import staged

__all__ = ["FILES", "FULL_ROWS", "SynthesizedRows", "synthesize_network"]

FILES = {"train": 180, "test": 20}
#: Rows a file that make the 200 files 1.8 GB.
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
    """Write the splits below `root`, each file with so many rows, and say what was written.

    `report` is told of rows. A split that is already there is replaced if it was synthesized, and
    is otherwise an error.
    """
    for name, value in (("rows", rows), ("row_group", row_group), ("workers", workers)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}", remedy="Ask for at least one")
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
                    NetworkJob(
                        split, shard, number + shard, rows, row_group, seed, str(folders[split])
                    )
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


def _run(jobs: list[NetworkJob], workers: int) -> Generator[tuple[NetworkJob, int], None, None]:
    if min(workers, len(jobs)) < 2 or sum(job.rows for job in jobs) < _FEW_ROWS:
        for job in jobs:
            yield job, write_network_job(job)
        return
    with ProcessPool("headrace.testing.network_worker:work", min(workers, len(jobs))) as pool:
        try:
            for number, size in pool.run([job.to_dict() for job in jobs], lambda *_: None):
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
        raise UsageError("no split was named", remedy=f"There are: {', '.join(files)}")
    return [name for name in files if name in wanted]


def _check_replaceable(target: Path) -> None:
    """Only what was synthesized is ever replaced."""
    if not target.exists():
        return
    try:
        inside = list(target.iterdir())
        ours = all(MARK in (pq.read_schema(file).metadata or {}) for file in inside)
    except (OSError, pa.ArrowInvalid):
        ours = False
    if not ours:
        raise DatasetError(
            "the folder exists and was not synthesized",
            file=str(target),
            remedy="Choose another folder, or move this one away",
        )
