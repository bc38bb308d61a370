"""Building a catalog: decide what must be scanned, scan it, merge, and put the result in place.

Finished shards are kept as parts until the whole is done, so an interrupted build goes on where it
was; shards that did not change keep their rows when others did. The new catalog appears by one
rename, so at every moment there is the old one, the new one, or none: never half of one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from headrace.catalog.lock import building
from headrace.catalog.manifest import (
    FORMAT_VERSION,
    LEVELS,
    MISSING,
    Damage,
    Manifest,
    ShardStamp,
    read_manifest,
    sync_folder,
    write_manifest,
)
from headrace.catalog.pool import ShardPool, ShardTask
from headrace.catalog.progress import BuildProgress
from headrace.catalog.scan import ScanJob, ScanResult, cannot_write, read_note
from headrace.catalog.table import EpisodeTable, table_schema, write_table
from headrace.errors import DatasetError, HeadraceError
from headrace.formats.extract import plan
from headrace.formats.rlds import RldsDataset, ShardFile

__all__ = ["build", "changed_shards", "shard_stat"]

_PARTS = "parts"
_NAMED = 5  # how many files an error names before it only counts


def shard_stat(dataset: RldsDataset, file: str) -> tuple[int, int]:
    """Size and time of change of a shard; MISSING if it is not there."""
    try:
        stat = os.stat(dataset.path / file)
    except OSError:
        return MISSING, 0
    return stat.st_size, stat.st_mtime_ns


def changed_shards(dataset: RldsDataset, manifest: Manifest) -> list[str]:
    """Shards that are no longer what the catalog was built from."""
    return [
        stamp.file
        for stamp in manifest.shards
        if not stamp.matches(*shard_stat(dataset, stamp.file))
    ]


def build(
    dataset: RldsDataset,
    folder: Path,
    *,
    level: str,
    quarantine: bool,
    pool: ShardPool,
    progress: BuildProgress,
) -> None:
    """Make the catalog in `folder` true for `dataset`; nothing to do if it already is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with building(
            folder,
            lambda: progress.note(f"{dataset.title}: another process is indexing it; waiting"),
        ):
            _Build(dataset, folder, level, quarantine).run(pool, progress)
    except HeadraceError as error:
        raise error.within(dataset=dataset.title) from None
    except OSError as error:
        raise cannot_write(error, str(folder)).within(dataset=dataset.title) from None


@dataclass
class _Shard:
    """A shard during a build: where its rows come from."""

    file: ShardFile
    size: int
    mtime_ns: int
    part: Path
    stamp: str
    kept: tuple[int, int] | None = None  # first row and steps in the old catalog
    found: ScanResult | None = None


class _Build:
    def __init__(self, dataset: RldsDataset, folder: Path, level: str, quarantine: bool) -> None:
        self.dataset, self.folder, self.level = dataset, folder, level
        self.quarantine = quarantine
        self.parts = plan(dataset.schema)
        self.old: Manifest | None = None  # what stands there, if its rows can be kept
        old = read_manifest(folder)
        if (
            old is not None
            and old.metadata_hash == dataset.metadata_hash
            and LEVELS.index(old.level) >= LEVELS.index(level)
            and _opens(folder / old.table)
        ):
            self.old, self.level = old, old.level

    def run(self, pool: ShardPool, progress: BuildProgress) -> None:
        shards = self._survey()
        scans = [shard for shard in shards if shard.kept is None and shard.found is None]
        if not scans and self.old is not None and all(shard.kept for shard in shards):
            return
        self._scan(scans, pool, progress)
        self._commit(shards)

    def _survey(self) -> list[_Shard]:
        """Every shard with what is known of it already."""
        shards = [self._look_at(file) for file in self.dataset.shards]
        self._check_files(shards)
        if self.old is not None:
            row = 0
            for shard, stamp in zip(shards, self.old.shards, strict=True):
                if stamp.matches(shard.size, shard.mtime_ns):
                    shard.kept = (row, stamp.steps)
                row += stamp.episodes
        for shard in shards:
            if shard.kept is None:
                shard.found = read_note(shard.part, shard.stamp)
        return shards

    def _look_at(self, file: ShardFile) -> _Shard:
        size, mtime_ns = shard_stat(self.dataset, file.file)
        facts = (
            FORMAT_VERSION,
            self.dataset.metadata_hash,
            self.level,
            self.quarantine,
            file.file,
            size,
            mtime_ns,
        )
        stamp = hashlib.sha256(repr(facts).encode()).hexdigest()
        name = hashlib.sha256(file.file.encode()).hexdigest()[:24]
        return _Shard(file, size, mtime_ns, self.folder / _PARTS / f"{name}.arrow", stamp)

    def _check_files(self, shards: list[_Shard]) -> None:
        """All shards that the metadata lists are there, and no others."""
        missing = [s.file.file for s in shards if s.size == MISSING and s.file.episodes]
        if missing and not self.quarantine:
            raise DatasetError(
                f"{len(missing)} of {len(shards)} shards are missing: {_some(missing)}",
                file=str(self.dataset.path),
                remedy="Fetch them, or go on without their episodes "
                "(`headrace index --quarantine`)",
            )
        parents = {Path(s.file.file).parent for s in shards}
        present = (
            str(parent / entry.name)
            for parent in parents
            if (self.dataset.path / parent).is_dir()
            for entry in os.scandir(self.dataset.path / parent)
        )
        extra = self.dataset.unlisted_shards(present)
        if extra and not self.quarantine:
            raise DatasetError(
                f"{len(extra)} shards are not listed in dataset_info.json: {_some(extra)}",
                file=str(self.dataset.path),
                remedy="Two versions of the dataset seem mixed: remove the files that do not "
                "belong, or ignore them (`headrace index --quarantine`)",
            )

    def _scan(self, scans: list[_Shard], pool: ShardPool, progress: BuildProgress) -> None:
        (self.folder / _PARTS).mkdir(exist_ok=True)
        for leftover in (self.folder / _PARTS).glob("*.tmp-*"):
            leftover.unlink(missing_ok=True)
        tasks = [ShardTask("scan", asdict(self._job(shard)), max(0, shard.size)) for shard in scans]
        pool.run(self.dataset.title, tasks, progress)
        for shard in scans:
            shard.found = read_note(shard.part, shard.stamp)
            if shard_stat(self.dataset, shard.file.file) != (shard.size, shard.mtime_ns):
                raise DatasetError(
                    "the shard changed while it was indexed",
                    file=str(self.dataset.path / shard.file.file),
                    remedy="Wait until the dataset is complete, then run it again",
                )

    def _job(self, shard: _Shard) -> ScanJob:
        return ScanJob(
            folder=str(self.dataset.path),
            file=shard.file.file,
            episodes=shard.file.episodes,
            level=self.level,
            quarantine=self.quarantine,
            out=str(shard.part),
            stamp=shard.stamp,
        )

    def _commit(self, shards: list[_Shard]) -> None:
        """Merge all rows into a new table and make it the catalog."""
        name = f"episodes-{secrets.token_hex(4)}.arrow"
        schema = table_schema(self.parts, self.level)
        write_table(self.folder / name, schema, self._rows(shards))
        sync_folder(self.folder)
        write_manifest(
            self.folder,
            Manifest(
                name=self.dataset.name,
                version=self.dataset.version,
                level=self.level,
                metadata_hash=self.dataset.metadata_hash,
                table=name,
                shards=tuple(self._stamps(shards)),
                quarantine=tuple(self._damage(shards)),
            ),
        )
        # From here on the new catalog is in force; what follows only tidies up.
        shutil.rmtree(self.folder / _PARTS, ignore_errors=True)
        for other in [*self.folder.glob("episodes-*.arrow*"), *self.folder.glob("*.tmp-*")]:
            if other.name != name:
                other.unlink(missing_ok=True)

    def _rows(self, shards: list[_Shard]) -> Iterator[pa.RecordBatch]:
        old = EpisodeTable(self.folder / self.old.table) if self.old is not None else None
        for number, shard in enumerate(shards):
            batches: Iterable[pa.RecordBatch]
            if shard.kept is not None and old is not None:
                batches = old.slice(shard.kept[0], shard.file.episodes)
            else:
                batches = EpisodeTable(shard.part).batches
            for batch in batches:
                column = pa.array([number] * batch.num_rows, pa.int32())
                yield batch.set_column(0, batch.schema.field(0), column)

    def _stamps(self, shards: list[_Shard]) -> Iterator[ShardStamp]:
        for shard in shards:
            steps = shard.kept[1] if shard.kept else shard.found.steps if shard.found else 0
            file = shard.file
            yield ShardStamp(
                file.split, file.file, shard.size, shard.mtime_ns, file.episodes, steps
            )

    def _damage(self, shards: list[_Shard]) -> Iterator[Damage]:
        old = self.old.quarantine if self.old is not None else ()
        for shard in shards:
            if shard.kept is not None:
                yield from (entry for entry in old if entry.file == shard.file.file)
            elif shard.found is not None:
                yield from shard.found.damage


def _opens(table: Path) -> bool:
    """Whether a table can be read at all."""
    try:
        EpisodeTable(table)
    except (OSError, ValueError):  # pyarrow's own errors are ValueErrors
        return False
    return True


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
