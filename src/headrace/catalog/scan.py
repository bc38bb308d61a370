"""Scanning one shard into a part of a catalog: the work that is spread over processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from headrace.catalog.manifest import Damage
from headrace.catalog.shard_bytes import ShardBytes, open_shard
from headrace.catalog.table import BATCH_BYTES, RowBuffer, table_schema, write_table
from headrace.errors import CatalogError, DataError, DatasetError, RecordError
from headrace.formats.extract import Part, index_record, plan
from headrace.formats.features import Schema
from headrace.formats.tfrecord import FOOTER, record_places

__all__ = ["ScanJob", "ScanResult", "cannot_write", "read_note", "scan_shard"]

_REPORT_STEPS = 4096


@dataclass(frozen=True, slots=True)
class ScanJob:
    """A shard to scan."""

    folder: str  #: the dataset's folder
    file: str  #: the shard, relative to it
    episodes: int  #: records it should hold
    level: str  #: "episodes" or "frames"
    quarantine: bool  #: note damaged episodes and go on
    out: str  #: file to write the rows to; its note goes beside it
    stamp: str  #: identifies what was scanned, kept in the note


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan found."""

    steps: int  #: of all episodes
    damage: list[Damage]  #: episodes to quarantine


def read_note(out: Path, stamp: str) -> ScanResult | None:
    """The result of an earlier scan of the same bytes, if it was finished."""
    try:
        note = json.loads(out.with_suffix(".json").read_bytes())
        if note["stamp"] != stamp or note["crc"] != crc32c(out.read_bytes()):
            return None
        return ScanResult(note["steps"], [Damage(*row) for row in note["damage"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_note(out: Path, stamp: str, result: ScanResult) -> None:
    content = {
        "stamp": stamp,
        "crc": crc32c(out.read_bytes()),  # parts are not synced: a power cut may leave half of one
        "steps": result.steps,
        "damage": [astuple(entry) for entry in result.damage],
    }
    note = out.with_suffix(".json")
    aside = note.with_name(f"{note.name}.tmp-{os.getpid()}")
    aside.write_text(json.dumps(content))
    aside.replace(note)


def scan_shard(
    job: ScanJob, schema: Schema, report: Callable[[int, int], None], *, mapped: bool
) -> ScanResult:
    """Index a shard and write its rows. `report(bytes, steps)` is called now and then."""
    parts = plan(schema)
    path = Path(job.folder, job.file)
    scan = _Scan(job, parts, report)
    columns = table_schema(parts, job.level)
    try:
        with open_shard(path, mapped=mapped) as shard:
            write_table(Path(job.out), columns, scan.batches(shard), durable=False)
    except FileNotFoundError:
        if job.episodes and not job.quarantine:
            raise DatasetError("the shard has vanished", file=str(path)) from None
        lost = scan.lost_batches(0, "the shard is missing")
        write_table(Path(job.out), columns, lost, durable=False)
    result = ScanResult(scan.steps, scan.damage)
    _write_note(Path(job.out), job.stamp, result)  # last: a scan counts once its note is there
    return result


class _Scan:
    """One pass over a shard."""

    def __init__(self, job: ScanJob, parts: list[Part], report: Callable[[int, int], None]) -> None:
        self.job, self.parts, self.report = job, parts, report
        self.rows = RowBuffer(parts, job.level)
        self.steps = 0
        self.records = 0
        self.damage: list[Damage] = []

    def lost_batches(self, offset: int, problem: str) -> Iterator[pa.RecordBatch]:
        """Rows for all episodes that can no longer be found."""
        while self.records < self.job.episodes:
            self._note(offset, problem)
            self.rows.append(0, 0, None)
            self.records += 1
        yield self.rows.take(0)

    def batches(self, shard: ShardBytes) -> Iterator[pa.RecordBatch]:
        """The shard's rows, a batch at a time."""
        buffer = shard.buffer
        reported = 0
        places = record_places(shard.read, shard.size)
        while True:
            try:
                offset, length = next(places, (shard.size, 0))
            except RecordError as error:  # the chain is broken: the rest cannot be found
                self._handle(error)
                yield from self.lost_batches(error.offset or 0, error.problem)
                return
            if offset == shard.size:
                break
            record = None
            if self.job.level == "frames":
                try:
                    record = index_record(buffer, offset, offset + length, self.parts)
                except DataError as error:
                    self._handle(error)
                    self._note(error.offset or offset, error.problem)
                else:
                    self.steps += record.steps
            self.rows.append(offset, length, record)
            self.records += 1
            position = offset + length + FOOTER
            shard.passed(position)
            if self.steps - reported >= _REPORT_STEPS:
                self.report(position, self.steps)
                reported = self.steps
            if self.rows.bytes >= BATCH_BYTES:
                yield self.rows.take(0)
        yield from self._finish(shard.size)

    def _finish(self, size: int) -> Iterator[pa.RecordBatch]:
        """The last rows, once the number of records is seen to be right."""
        if self.records != self.job.episodes:
            error = DatasetError(
                f"the shard holds {self.records} records where dataset_info.json says "
                f"{self.job.episodes}",
                offset=size,
                remedy="The shard was not copied completely or is of another version: copy it "
                "again, or go on without what is missing (`headrace index --quarantine`)",
            )
            if self.records > self.job.episodes:
                error.remedy = "The metadata is of another version: copy dataset_info.json again"
                raise error.within(file=self._path())
            self._handle(error)
            yield from self.lost_batches(size, error.problem)
            return
        self.report(size, self.steps)
        yield self.rows.take(0)

    def _handle(self, error: DataError) -> None:
        """Raise unless damage is to be quarantined."""
        if not self.job.quarantine:
            raise error.within(file=self._path(), episode=self.records) from None

    def _note(self, offset: int, problem: str) -> None:
        self.damage.append(Damage(self.job.file, self.records, offset, problem))

    def _path(self) -> str:
        return str(Path(self.job.folder, self.job.file))


def cannot_write(error: OSError, path: str) -> CatalogError:
    """An operating system's complaint about the catalog's own files, as an error with a remedy."""
    return CatalogError(
        f"the catalog cannot be written: {error.strerror}",
        file=path,
        remedy="Free some space (a catalog needs about 5 bytes a frame and camera), or put it "
        "elsewhere: HEADRACE_CACHE=/other/disk headrace index --cache PATH",
    )
