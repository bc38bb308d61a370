"""Verifying a dataset: checksums and structure of every record, and whether its images decode.

It reads the shards, so it also works where no catalog can be built. Where there is one, the
checksums that it keeps of frames are compared too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog, decode_frame
from headrace.catalog.manifest import (
    Damage,
    Manifest,
    candidates,
    cannot_write,
    read_manifest,
    write_manifest,
)
from headrace.catalog.shards import (
    BuildProgress,
    Quiet,
    Report,
    ShardBytes,
    ShardPool,
    ShardTask,
    open_shard,
    shard_stat,
)
from headrace.catalog.table import EpisodeTable
from headrace.errors import DataError, HeadraceError
from headrace.files import locked
from headrace.formats.extract import (
    BLOBS,
    FIXED,
    Part,
    RecordIndex,
    blobs,
    index_record,
    parts_of,
    plan,
    values,
)
from headrace.formats.features import Field, Schema
from headrace.formats.rlds import RldsDataset, read_dataset
from headrace.formats.tfrecord import FOOTER


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, and where."""

    file: str
    episode: int  #: number of the record in the shard
    offset: int  #: in the file
    problem: str
    frame: int | None = None
    field: str | None = None
    damage: bool = True  #: the episode must not be used; else only worth knowing


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
    #: Whether the catalog has checksums, which were compared with the frames; None: no catalog
    catalog_checksums: bool | None = None

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
    only: Mapping[str, Collection[int]] | None = None,
    pool: ShardPool | None = None,
    progress: BuildProgress | None = None,
) -> Verdict:
    """Check every record's checksum and structure, and decode a sample of images or all.

    `only` names records of some shards: the others are hopped over.
    """
    dataset = read_dataset(path)
    assert dataset.schema  # a broken one is an error here, before any process starts
    manifest, rows = _indexed(dataset)
    tasks = [
        ShardTask(
            f"{__name__}:check",
            asdict(
                _Job(
                    str(dataset.path),
                    shard.file,
                    shard.episodes,
                    decode,
                    sorted(only[shard.file]) if only is not None else None,
                    *rows.get(shard.file, ()),
                )
            ),
            max(0, shard_stat(dataset.path / shard.file)[0]),
        )
        for shard in dataset.shards
        if only is None or shard.file in only
    ]
    with contextlib.ExitStack() as stack:
        pool = pool or stack.enter_context(ShardPool())
        results = pool.run(dataset.title, tasks, progress or Quiet())
    return Verdict(
        name=dataset.name,
        version=dataset.version,
        path=dataset.path,
        records=sum(result["records"] - result["hopped"] for result in results),
        steps=sum(result["steps"] for result in results),
        bytes=sum(result["bytes"] - result["hopped_bytes"] for result in results),
        frames_decoded=sum(result["frames_decoded"] for result in results),
        findings=tuple(Finding(**row) for result in results for row in result["findings"]),
        catalog_checksums=manifest.checksums if manifest else None,
    )


def _indexed(dataset: RldsDataset) -> tuple[Manifest | None, dict[str, tuple[str, int]]]:
    """The catalog that is there, and table and first row of each shard that it has checksums of."""
    for folder in candidates(dataset.path):
        manifest = read_manifest(folder)
        if (
            manifest is None
            or manifest.metadata_hash != dataset.metadata_hash
            or manifest.level != "frames"
        ):
            continue
        rows, row = {}, 0
        for stamp in manifest.shards:
            if manifest.checksums and stamp.matches(*shard_stat(dataset.path / stamp.file)):
                rows[stamp.file] = (str(folder / manifest.table), row)
            row += stamp.episodes
        return manifest, rows
    return None, {}


def quarantine(verdict: Verdict, *, cache: bool = False) -> int:
    """Leave the damaged episodes of a verdict out of the catalog; how many it now leaves out.

    The catalog is built first if need be. Episodes keep their numbers and splits their bounds.
    """
    catalog = Catalog.open(verdict.path, on_damage="quarantine", cache=cache)
    damage = [
        Damage(finding.file, finding.episode, finding.offset, finding.problem)
        for finding in verdict.findings
        if finding.damage
    ]
    try:
        with locked(catalog.folder / "lock", lambda: None):
            manifest = (read_manifest(catalog.folder) or catalog.manifest).with_quarantine(damage)
            write_manifest(catalog.folder, manifest)
    except OSError as error:
        raise cannot_write(error, str(catalog.folder)) from None
    return len(manifest.quarantine)


# -- one shard -----------------------------------------------------------------------------------

_SAMPLED_EPISODES = 8  # per shard, spread evenly: enough to notice a wrong schema or decoder
_MAX_FINDINGS = 1000  # per shard; a longer list would not help


@dataclass(frozen=True, slots=True)
class _Job:
    """A shard to check."""

    folder: str  #: the dataset's folder
    file: str  #: the shard, relative to it
    episodes: int  #: records it should hold
    decode: str  #: "none", "sample" or "all"
    only: Sequence[int] | None = None  #: numbers of the records to check, in order; None: all
    table: str | None = None  #: of a catalog with checksums, where there is one
    row: int = 0  #: of the shard's first episode in it


@dataclass
class _Result:
    """What a check of a shard found."""

    records: int = 0
    steps: int = 0
    frames_decoded: int = 0
    bytes: int = 0
    hopped: int = 0  #: of the records
    hopped_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def check(
    job_values: dict[str, Any], schema: Schema, report: Report, *, mapped: bool
) -> dict[str, Any]:
    """Check a shard from front to back: the task of a `ShardPool`."""
    job = _Job(**job_values)
    result = _Result()
    try:
        with open_shard(Path(job.folder, job.file), mapped=mapped, whole=not job.only) as shard:
            table = EpisodeTable(Path(job.table)) if job.table else None
            _Check(job, schema, shard, result, table).run(report)
    except FileNotFoundError:
        problem = "the shard is missing"
        result.findings += [Finding(job.file, n, 0, problem) for n in range(job.episodes)]
    return asdict(result)


@dataclass
class _Check:
    """One pass over a shard."""

    job: _Job
    schema: Schema
    shard: ShardBytes
    result: _Result
    table: EpisodeTable | None

    def run(self, report: Report) -> None:
        job, result, shard = self.job, self.result, self.shard
        parts = plan(self.schema)
        stride = max(1, job.episodes // _SAMPLED_EPISODES)
        try:
            for offset, length in shard.records(job.episodes):
                if job.only is not None:
                    if result.records > job.only[-1]:
                        return
                    if result.records not in job.only:
                        result.records += 1
                        result.hopped += 1
                        result.hopped_bytes += length
                        continue
                sampled = job.decode == "sample" and not result.records % stride
                self._check_record(parts, offset, length, job.decode == "all" or sampled)
                result.records += 1
                result.bytes = offset + length + FOOTER
                report(result.bytes, result.steps)
                if len(result.findings) >= _MAX_FINDINGS:
                    return
        except DataError as error:  # the chain of records does not reach the other episodes
            for episode in range(result.records, max(result.records + 1, job.episodes)):
                self._found(error.offset or 0, error.problem, episode=episode)

    def _found(self, offset: int, problem: str, **more: Any) -> None:
        more.setdefault("episode", self.result.records)
        finding = Finding(file=self.job.file, offset=offset, problem=problem, **more)
        self.result.findings.append(finding)

    def _check_record(self, parts: list[Part], offset: int, length: int, thorough: bool) -> None:
        """Checksum and structure of a record, its frames and, if thorough, every value in it."""
        try:
            with self.shard.payload(offset, length) as payload:
                record = index_record(self.shard.buffer, offset, offset + length, parts, payload)
        except DataError as error:
            self._found(error.offset or offset, error.problem, field=error.field)
            return
        self.result.steps += record.steps
        self._compare(parts, offset, record)
        if not thorough:
            return
        places = _Places(record, parts, offset)

        def fetch(start: int, size: int) -> bytes:
            return self.shard.read(offset + start, size)

        for one in self.schema.fields:
            if one.kind == "unsupported":
                continue
            if one.is_camera:
                self._check_camera(one, places, fetch, offset)
                continue
            try:
                values(one, places, fetch, 0, record.steps)
            except HeadraceError as error:
                at = offset + places.start(parts_of(one)[-1])
                self._found(at, error.problem, field=one.key)

    def _compare(self, parts: list[Part], offset: int, record: RecordIndex) -> None:
        """An intact record whose frames are not those that were indexed: another file."""
        row = self.job.row + self.result.records
        if self.table is None or not self.table.value("steps", row):  # quarantined, or no frames
            return
        for part, ends, crcs in zip(parts, record.ends, record.crcs, strict=True):
            if part.storage != BLOBS:
                continue
            indexed: list[Any] = [self.table.ends(part.key, row), self.table.crcs(part.key, row)]
            if [list(each) for each in indexed] != [list(ends or ()), list(crcs or ())]:
                problem = (
                    "the record is intact but not the one that was indexed (the shard was "
                    "replaced, and its size and time are the same): remove the catalog, "
                    f"{Path(self.table.path).parent}"
                )
                self._found(offset, problem, field=part.key)
                return

    def _check_camera(
        self, camera: Field, places: _Places, fetch: Callable[[int, int], bytes], offset: int
    ) -> None:
        """Decode the first and the last frame, or all."""
        part = parts_of(camera)[0]
        ends = places.ends(part)
        every = max(1, places.steps - 1) if self.job.decode == "sample" else 1
        for t in range(0, places.steps, every):
            where = offset + places.start(part) + (int(ends[t - 1]) if t and len(ends) else 0)
            found = partial(self._found, where, frame=t, field=camera.key)
            try:
                image = decode_frame(camera, blobs(part, places, fetch, t, t + 1)[0])
            except HeadraceError as error:
                found(problem=error.problem)
                continue
            self.result.frames_decoded += 1
            declared, actual = camera.shape[:2], image.shape[:2]
            if any(d not in (None, a) for d, a in zip(declared, actual, strict=False)):
                sizes = [f"{height}x{width}" for height, width in (actual, declared)]
                problem = f"the image is {sizes[0]}, but features.json says {sizes[1]}"
                found(problem=problem, damage=False)


class _Places:
    """A record that was just walked, in the form that `formats.extract` reads."""

    def __init__(self, record: RecordIndex, parts: list[Part], origin: int) -> None:
        self.origin = origin
        self.steps = record.steps
        self._record = record
        self._index = {part.key: number for number, part in enumerate(parts)}

    def start(self, part: Part) -> int:
        return self._record.starts[self._index[part.key]]

    def size(self, part: Part) -> int:
        if part.storage == FIXED:
            return self.steps * part.step_bytes
        return self._record.sizes[self._index[part.key]]

    def ends(self, part: Part) -> NDArray[np.uint32]:
        ends: Any = self._record.ends[self._index[part.key]]
        return np.array(ends if ends is not None else [], np.uint32)

    def crcs(self, part: Part) -> None:
        del part  # they were computed from these very bytes
