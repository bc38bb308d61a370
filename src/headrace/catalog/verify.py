"""Verifying a whole dataset, and leaving out what is damaged."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from headrace.catalog.build import shard_stat
from headrace.catalog.catalog import Catalog
from headrace.catalog.check import CheckJob, Finding
from headrace.catalog.lock import building
from headrace.catalog.manifest import Damage, read_manifest, write_manifest
from headrace.catalog.pool import ShardPool, ShardTask
from headrace.catalog.progress import BuildProgress, Quiet
from headrace.catalog.scan import cannot_write
from headrace.formats.rlds import read_dataset

__all__ = ["Verdict", "quarantine", "verify"]


@dataclass(frozen=True)
class Verdict:
    """The result of verifying a dataset."""

    name: str
    version: str
    path: Path
    records: int  #: records whose checksum was computed
    steps: int
    bytes: int
    frames_decoded: int
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> int:
        """Episodes that must not be used."""
        return len({(f.file, f.episode) for f in self.findings if f.damage})

    @property
    def ok(self) -> bool:
        """Whether every episode can be used."""
        return not self.damaged


def verify(
    path: str | Path,
    *,
    decode: Literal["none", "sample", "all"] = "sample",
    pool: ShardPool | None = None,
    progress: BuildProgress | None = None,
) -> Verdict:
    """Check every record's checksum and structure, and decode a sample of images or all."""
    dataset = read_dataset(path)
    schema = dataset.schema  # a broken one is an error here, before any process starts
    assert schema
    tasks = [
        ShardTask(
            "check",
            asdict(CheckJob(str(dataset.path), shard.file, shard.episodes, decode)),
            max(0, shard_stat(dataset, shard.file)[0]),
        )
        for shard in dataset.shards
    ]
    with contextlib.ExitStack() as stack:
        pool = pool or stack.enter_context(ShardPool())
        results = pool.run(dataset.title, tasks, progress or Quiet())
    return Verdict(
        name=dataset.name,
        version=dataset.version,
        path=dataset.path,
        records=sum(result["records"] for result in results),
        steps=sum(result["steps"] for result in results),
        bytes=sum(result["bytes"] for result in results),
        frames_decoded=sum(result["frames_decoded"] for result in results),
        findings=tuple(Finding(**row) for result in results for row in result["findings"]),
    )


def quarantine(verdict: Verdict, *, cache: bool = False) -> int:
    """Leave the damaged episodes of a verdict out of the dataset's catalog; how many it now has.

    The catalog is built first if need be. Episodes keep their numbers and splits their bounds.
    """
    catalog = Catalog.open(verdict.path, on_damage="quarantine", cache=cache)
    damage = [
        Damage(finding.file, finding.episode, finding.offset, finding.problem)
        for finding in verdict.findings
        if finding.damage
    ]
    try:
        with building(catalog.folder, lambda: None):
            manifest = (read_manifest(catalog.folder) or catalog.manifest).with_quarantine(damage)
            write_manifest(catalog.folder, manifest)
    except OSError as error:
        raise cannot_write(error, str(catalog.folder)) from None
    return len(manifest.quarantine)
