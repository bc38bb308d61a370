"""Building a catalog: decide what must be scanned, scan it, merge, and put the result in place.

Finished shards are kept as parts until the whole is done, so an interrupted build resumes; shards
that did not change keep their rows when others did. The new catalog appears by one rename, so at
every moment there is the old one, the new one, or none: never half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from headrace.catalog.manifest import (
    FORMAT_VERSION,
    LEVELS,
    MISSING,
    UNCHECKED,
    Damage,
    Manifest,
    ShardStamp,
    candidates,
    cannot_write,
    is_writable,
    read_manifest,
    some_of,
    write_manifest,
)
from headrace.catalog.shards import (
    BuildProgress,
    ProgressBar,
    Report,
    ShardBytes,
    ShardPool,
    ShardTask,
    open_shard,
    shard_stat,
)
from headrace.catalog.table import BATCH_BYTES, EpisodeTable, RowBuffer, table_schema, write_table
from headrace.errors import CatalogError, DataError, DatasetError, HeadraceError
from headrace.files import atomic_write, locked, sync_folder
from headrace.formats.extract import Part, RecordIndex, index_record, plan
from headrace.formats.features import Schema
from headrace.formats.rlds import RldsDataset, ShardFile, read_dataset

_PARTS = "parts"


# -- a catalog that is up to date ----------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A dataset and its catalog, which is up to date."""

    dataset: RldsDataset
    folder: Path  #: where the catalog lies
    manifest: Manifest
    table: EpisodeTable


def prepare(
    path: str | Path,
    *,
    level: str,
    quick: bool | None,
    quarantine: bool,
    cache: bool,
    workers: int | None,
    progress: BuildProgress | None,
    pool: ShardPool | None,
) -> Prepared:
    """The dataset in a version folder with a catalog of at least `level`, built if need be.

    `quick` true builds without checksums, false insists on them, None takes what there is.
    """
    dataset = read_dataset(path)
    places = candidates(dataset.path)[1 if cache else 0 :]
    wanted = _Wanted(level, checksums=level == "frames" and not quick, insist=quick is False)
    for _ in range(3):  # another process may replace the catalog between two of our steps
        found = _current(dataset, places, wanted)
        if found is not None:
            return found
        with ExitStack() as stack:
            shown = progress or stack.enter_context(ProgressBar())
            _build(
                dataset,
                _choose_folder(dataset, places, wanted, shown),
                wanted=wanted,
                quarantine=quarantine,
                pool=pool or stack.enter_context(ShardPool(workers)),
                progress=shown,
            )
    raise CatalogError(
        "the dataset keeps changing while its catalog is opened",
        dataset=dataset.title,
        file=str(dataset.path),
        remedy="Wait until it is complete, then open it again",
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a catalog must know."""

    level: str
    checksums: bool  #: whether one that is built anew has the checksums of frames
    insist: bool  #: whether one without them does not do

    def is_met_by(self, manifest: Manifest) -> bool:
        knows = LEVELS.index(manifest.level) >= LEVELS.index(self.level)
        return knows and (manifest.checksums or not (self.insist and self.checksums))


def _current(dataset: RldsDataset, places: list[Path], wanted: _Wanted) -> Prepared | None:
    """The catalog as it is, if it is up to date and knows enough."""
    for folder in places:
        found = _usable(dataset, folder, wanted)
        if found is not None and not _changed_shards(dataset, found.manifest):
            return found
    return None


def _usable(dataset: RldsDataset, folder: Path, wanted: _Wanted) -> Prepared | None:
    """The catalog in a folder, if its rows are good wherever the shards did not change."""
    manifest = read_manifest(folder)
    if (
        manifest is None
        or manifest.metadata_hash != dataset.metadata_hash
        or not wanted.is_met_by(manifest)
    ):
        return None
    try:
        return Prepared(dataset, folder, manifest, EpisodeTable(folder / manifest.table))
    except (OSError, ValueError):  # replaced or damaged meanwhile; pyarrow's are ValueErrors
        return None


def _choose_folder(
    dataset: RldsDataset, places: list[Path], wanted: _Wanted, progress: BuildProgress
) -> Path:
    """Where to build: where a catalog already is, else the first place that can be written."""
    existing = []
    for folder in places:
        manifest = read_manifest(folder)
        if manifest is None:
            if outdated := read_manifest(folder, outdated=True):
                existing.append(folder)
                progress.note(
                    f"{dataset.title}: its catalog has format {outdated.format_version}, this "
                    f"headrace writes format {FORMAT_VERSION}; indexing it again, once"
                )
            continue
        existing.append(folder)
        if manifest.metadata_hash != dataset.metadata_hash:
            progress.note(f"{dataset.title}: its metadata changed; indexing it again")
        elif changed := _changed_shards(dataset, manifest):
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            progress.note(
                f"{dataset.title}: {changed[0]}{more} changed since it was indexed; "
                "indexing it again"
            )
        elif manifest.level == wanted.level and not wanted.is_met_by(manifest):
            progress.note(f"{dataset.title}: {UNCHECKED}; indexing it again, with checksums")
    for folder in [*existing, *places]:
        if is_writable(folder):
            return folder
    raise CatalogError(
        "there is no place where the catalog can be written",
        dataset=dataset.title,
        file=str(places[-1]),
        remedy="Set HEADRACE_CACHE to a folder that can be written",
    )


def _changed_shards(dataset: RldsDataset, manifest: Manifest) -> list[str]:
    """Shards that are no longer what the catalog was built from."""
    return [
        stamp.file
        for stamp in manifest.shards
        if not stamp.matches(*shard_stat(dataset.path / stamp.file))
    ]


# -- the whole build -----------------------------------------------------------------------------


def _build(
    dataset: RldsDataset,
    folder: Path,
    *,
    wanted: _Wanted,
    quarantine: bool,
    pool: ShardPool,
    progress: BuildProgress,
) -> None:
    """Bring the catalog in `folder` up to date."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(
            folder / "lock",
            lambda: progress.note(f"{dataset.title}: another process is indexing it; waiting"),
        ):
            _Build(dataset, folder, wanted, quarantine).run(pool, progress)
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
    row: int | None = None  # first row in the old catalog, if its rows are kept
    found: ScanResult | None = None


class _Build:
    def __init__(
        self, dataset: RldsDataset, folder: Path, wanted: _Wanted, quarantine: bool
    ) -> None:
        self.dataset, self.folder, self.quarantine = dataset, folder, quarantine
        self.old = _usable(dataset, folder, wanted)
        same = self.old.manifest if self.old else wanted
        self.level, self.checksums = same.level, same.checksums
        self.known = self._known_damage()

    def _known_damage(self) -> dict[str, list[Damage]]:
        """What an earlier catalog, also one that cannot be used, leaves out of unchanged shards."""
        found: dict[str, list[Damage]] = {}
        manifest = read_manifest(self.folder) or read_manifest(self.folder, outdated=True)
        if manifest is not None and manifest.metadata_hash == self.dataset.metadata_hash:
            changed = _changed_shards(self.dataset, manifest)
            for damage in manifest.quarantine:
                if damage.file not in changed:
                    found.setdefault(damage.file, []).append(damage)
        return found

    def run(self, pool: ShardPool, progress: BuildProgress) -> None:
        shards = self._survey()
        if all(shard.row is not None for shard in shards) and self.old is not None:
            return
        self._scan([shard for shard in shards if shard.found is None], pool, progress)
        if not self.quarantine and (new := self._new_damage(shards)):
            progress.note(
                f"{self.dataset.title}: {len(new)} more damaged episodes are left out; the first: "
                f"{new[0].file}, episode {new[0].record}: {new[0].problem}"
            )
        self._commit(shards)

    def _new_damage(self, shards: list[_Shard]) -> list[Damage]:
        known = {(each.file, each.record) for damage in self.known.values() for each in damage}
        found = [damage for shard in shards if shard.found for damage in shard.found.damage]
        return [each for each in found if (each.file, each.record) not in known]

    def _survey(self) -> list[_Shard]:
        """Every shard with what is already known of it."""
        shards = [self._look_at(file) for file in self.dataset.shards]
        self._check_files(shards)
        if self.old is not None:
            row = 0
            for shard, stamp in zip(shards, self.old.manifest.shards, strict=True):
                if stamp.matches(shard.size, shard.mtime_ns):
                    shard.row, shard.found = row, ScanResult(stamp.steps, [])
                row += stamp.episodes
        for shard in shards:
            shard.found = shard.found or _read_note(shard.part, shard.stamp)
        return shards

    def _look_at(self, file: ShardFile) -> _Shard:
        size, mtime_ns = shard_stat(self.dataset.path / file.file)
        facts = (
            FORMAT_VERSION,
            self.dataset.metadata_hash,
            self.level,
            self.checksums,
            self._may_leave_out(file),
            file.file,
            size,
            mtime_ns,
        )
        stamp = hashlib.sha256(repr(facts).encode()).hexdigest()
        name = hashlib.sha256(file.file.encode()).hexdigest()[:24]
        return _Shard(file, size, mtime_ns, self.folder / _PARTS / f"{name}.arrow", stamp)

    def _may_leave_out(self, file: ShardFile) -> bool:
        """Whether damaged episodes of a shard are left out: on request, or as they were before."""
        return self.quarantine or file.file in self.known

    def _check_files(self, shards: list[_Shard]) -> None:
        """All shards that the metadata lists are there, and no others."""
        missing = [
            shard.file.file
            for shard in shards
            if shard.size == MISSING and shard.file.episodes and not self._may_leave_out(shard.file)
        ]
        if missing:
            raise DatasetError(
                f"{len(missing)} of {len(shards)} shards are missing: {some_of(missing)}",
                file=str(self.dataset.path),
                remedy="Fetch them, or continue without their episodes "
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
                f"{len(extra)} shards are not listed in dataset_info.json: {some_of(extra)}",
                file=str(self.dataset.path),
                remedy="Two versions of the dataset seem to be mixed: remove the files that do not "
                "belong, or ignore them (`headrace index --quarantine`)",
            )

    def _scan(self, scans: list[_Shard], pool: ShardPool, progress: BuildProgress) -> None:
        (self.folder / _PARTS).mkdir(exist_ok=True)
        for leftover in (self.folder / _PARTS).glob("*.tmp-*"):
            leftover.unlink(missing_ok=True)
        tasks = []
        for shard in scans:
            job = ScanJob(
                folder=str(self.dataset.path),
                file=shard.file.file,
                episodes=shard.file.episodes,
                level=self.level,
                checksums=self.checksums,
                quarantine=self._may_leave_out(shard.file),
                out=str(shard.part),
                stamp=shard.stamp,
            )
            tasks.append(ShardTask(f"{__name__}:scan", asdict(job), max(0, shard.size)))
        pool.run(self.dataset.title, tasks, progress)
        for shard in scans:
            shard.found = _read_note(shard.part, shard.stamp)
            path = self.dataset.path / shard.file.file
            if shard_stat(path) != (shard.size, shard.mtime_ns):
                raise DatasetError(
                    "the shard changed while it was indexed",
                    file=str(path),
                    remedy="Wait until the dataset is complete, then run it again",
                )

    def _commit(self, shards: list[_Shard]) -> None:
        """Merge all rows into a new table and make it the catalog."""
        name = f"episodes-{secrets.token_hex(4)}.arrow"
        schema = table_schema(plan(self.dataset.schema), self.level, self.checksums)
        write_table(self.folder / name, schema, self._rows(shards))
        sync_folder(self.folder)
        stamps, damage = [], [each for known in self.known.values() for each in known]
        for shard in shards:
            file, found = shard.file, shard.found or ScanResult(0, [])
            stamps.append(
                ShardStamp(
                    file.split, file.file, shard.size, shard.mtime_ns, file.episodes, found.steps
                )
            )
            damage += found.damage
        manifest = Manifest(
            name=self.dataset.name,
            version=self.dataset.version,
            level=self.level,
            metadata_hash=self.dataset.metadata_hash,
            table=name,
            shards=tuple(stamps),
            checksums=self.checksums,
        )
        write_manifest(self.folder, manifest.with_quarantine(damage))
        # From here on the new catalog is in force; what follows only tidies up.
        shutil.rmtree(self.folder / _PARTS, ignore_errors=True)
        for other in [*self.folder.glob("episodes-*.arrow*"), *self.folder.glob("*.tmp-*")]:
            if other.name != name:
                other.unlink(missing_ok=True)

    def _rows(self, shards: list[_Shard]) -> Iterator[pa.RecordBatch]:
        for number, shard in enumerate(shards):
            batches: Iterable[pa.RecordBatch]
            if shard.row is not None and self.old is not None:
                batches = self.old.table.slice(shard.row, shard.file.episodes)
            else:
                batches = EpisodeTable(shard.part).batches
            for batch in batches:
                column = pa.array([number] * batch.num_rows, pa.int32())
                yield batch.set_column(0, batch.schema.field(0), column)


# -- one shard: the work that is spread over processes -------------------------------------------

_REPORT_STEPS = 4096
_REPORT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ScanJob:
    """A shard to scan."""

    folder: str  #: the dataset's folder
    file: str  #: the shard, relative to it
    episodes: int  #: records it should hold
    level: str  #: "episodes" or "frames"
    checksums: bool  #: read and check every record, and keep the checksum of every frame
    quarantine: bool  #: record damaged episodes instead of raising
    out: str  #: file to write the rows to; its note goes beside it
    stamp: str  #: identifies what was scanned, kept in the note


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan found."""

    steps: int  #: of all episodes
    damage: list[Damage]  #: episodes to quarantine


def scan(job: dict[str, Any], schema: Schema, report: Report, *, mapped: bool) -> dict[str, Any]:
    """The task of a `ShardPool`."""
    return asdict(scan_shard(ScanJob(**job), schema, report, mapped=mapped))


def scan_shard(job: ScanJob, schema: Schema, report: Report, *, mapped: bool) -> ScanResult:
    """Index a shard and write its rows to `job.out`."""
    parts = plan(schema)
    path, out = Path(job.folder, job.file), Path(job.out)
    scanning = _Scan(job, parts, report)
    columns = table_schema(parts, job.level, job.checksums)
    try:
        with open_shard(path, mapped=mapped, whole=job.checksums) as shard:
            write_table(out, columns, scanning.batches(shard), durable=False)
    except FileNotFoundError:
        if job.episodes and not job.quarantine:
            raise DatasetError("the shard has vanished", file=str(path)) from None
        lost = scanning.lost_batches(0, "the shard is missing")
        write_table(out, columns, lost, durable=False)
    result = ScanResult(scanning.steps, scanning.damage)
    note = {
        "stamp": job.stamp,
        "crc": crc32c(out.read_bytes()),  # parts are not synced: a power cut may leave half of one
        "steps": result.steps,
        "damage": [astuple(entry) for entry in result.damage],
    }
    # Last: a scan counts once its note is there.
    atomic_write(out.with_suffix(".json"), json.dumps(note), durable=False)
    return result


def _read_note(out: Path, stamp: str) -> ScanResult | None:
    """The result of an earlier scan of the same bytes, if it was finished."""
    try:
        note = json.loads(out.with_suffix(".json").read_bytes())
        if note["stamp"] != stamp or note["crc"] != crc32c(out.read_bytes()):
            return None
        return ScanResult(note["steps"], [Damage(*row) for row in note["damage"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Scan:
    """One pass over a shard."""

    def __init__(self, job: ScanJob, parts: list[Part], report: Report) -> None:
        self.job, self.parts, self.report = job, parts, report
        self.rows = RowBuffer(parts, job.level, job.checksums)
        self.steps = 0
        self.records = 0
        self.damage: list[Damage] = []

    def batches(self, shard: ShardBytes) -> Iterator[pa.RecordBatch]:
        """The shard's rows, a batch at a time."""
        reported = (0, 0)
        try:
            for offset, length in shard.records(self.job.episodes):
                record = self._index(shard, offset, length) if self.job.level == "frames" else None
                self.rows.append(offset, length, record)
                self.records += 1
                steps, end = self.steps - reported[0], offset + length - reported[1]
                if steps >= _REPORT_STEPS or (self.job.checksums and end >= _REPORT_BYTES):
                    reported = self.steps, offset + length
                    self.report(offset + length, self.steps)
                if self.rows.bytes >= BATCH_BYTES:
                    yield self.rows.take(0)
        except DataError as error:
            too_many = self.records > self.job.episodes
            if too_many or not self.job.quarantine:
                path = str(Path(self.job.folder, self.job.file))
                episode = None if too_many else self.records
                raise error.within(file=path, episode=episode) from None
            # The chain of records is broken or too short: the rest cannot be found.
            yield from self.lost_batches(error.offset or 0, error.problem)
        else:
            self.report(shard.size, self.steps)
            yield self.rows.take(0)

    def _index(self, shard: ShardBytes, offset: int, length: int) -> RecordIndex | None:
        try:
            record = self._read(shard, offset, length)
        except DataError as error:
            if not self.job.quarantine:
                raise
            self._add_damage(error.offset or offset, error.problem)
            return None
        self.steps += record.steps
        return record

    def _read(self, shard: ShardBytes, offset: int, length: int) -> RecordIndex:
        if not self.job.checksums:
            return index_record(shard.buffer, offset, offset + length, self.parts)
        with shard.payload(offset, length) as payload:
            return index_record(shard.buffer, offset, offset + length, self.parts, payload)

    def lost_batches(self, offset: int, problem: str) -> Iterator[pa.RecordBatch]:
        """Rows for all episodes that can no longer be found."""
        while self.records < self.job.episodes:
            self._add_damage(offset, problem)
            self.rows.append(0, 0, None)
            self.records += 1
        yield self.rows.take(0)

    def _add_damage(self, offset: int, problem: str) -> None:
        self.damage.append(Damage(self.job.file, self.records, offset, problem))
