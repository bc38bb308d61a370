"""Verifying a dataset: checksums and structure of every record, and whether its images decode.

It reads the shards, not the catalog, so it also works where no catalog can be built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog, decode_frame
from headrace.catalog.manifest import Damage, cannot_write, read_manifest, write_manifest
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
from headrace.errors import DataError, HeadraceError, RecordError
from headrace.files import locked
from headrace.formats.extract import (
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
from headrace.formats.rlds import read_dataset
from headrace.formats.tfrecord import FOOTER, payload_is_intact, record_places

__all__ = ["Finding", "Verdict", "quarantine", "verify"]


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
    assert dataset.schema  # a broken one is an error here, before any process starts
    tasks = [
        ShardTask(
            f"{__name__}:check",
            asdict(_Job(str(dataset.path), shard.file, shard.episodes, decode)),
            max(0, shard_stat(dataset.path / shard.file)[0]),
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


@dataclass
class _Result:
    """What a check of a shard found."""

    records: int = 0
    steps: int = 0
    frames_decoded: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def check(
    job_values: dict[str, Any], schema: Schema, report: Report, *, mapped: bool
) -> dict[str, Any]:
    """Check a shard from front to back: the task of a `ShardPool`."""
    job, result = _Job(**job_values), _Result()
    try:
        with open_shard(Path(job.folder, job.file), mapped=mapped) as shard:
            for _ in _check(job, schema, shard, result):
                report(result.bytes, result.steps)
    except FileNotFoundError:
        if job.episodes:
            result.findings += [
                Finding(job.file, record, 0, "the shard is missing")
                for record in range(job.episodes)
            ]
    return asdict(result)


def _check(job: _Job, schema: Schema, shard: ShardBytes, result: _Result) -> Iterator[None]:
    parts = plan(schema)
    stride = max(1, job.episodes // _SAMPLED_EPISODES)
    places = record_places(shard.read, shard.size)
    view = memoryview(shard.buffer)
    try:
        while len(result.findings) < _MAX_FINDINGS:
            try:
                place = next(places, None)
            except RecordError as error:
                _lost(job, result, error.offset or 0, error.problem)
                return
            if place is None:
                break
            offset, length = place
            number = result.records
            footer = shard.read(offset + length, FOOTER)
            if not payload_is_intact(view[offset : offset + length], footer):
                problem = "the checksum of the record is wrong"
                result.findings.append(Finding(job.file, number, offset, problem))
            else:
                thorough = job.decode == "all" or (job.decode == "sample" and not number % stride)
                _check_record(job, schema, parts, shard, place, result, thorough)
            result.records += 1
            result.bytes = offset + length + FOOTER
            shard.passed(result.bytes)
            yield
    finally:
        view.release()
    if result.records != job.episodes:
        problem = (
            f"the shard holds {result.records} records, but dataset_info.json says {job.episodes}"
        )
        _lost(job, result, shard.size, problem)


def _lost(job: _Job, result: _Result, offset: int, problem: str) -> None:
    """Every episode that the broken chain of records no longer reaches."""
    first = result.records
    lost = range(first, max(first + 1, job.episodes))
    result.findings += [Finding(job.file, record, offset, problem) for record in lost]


def _check_record(
    job: _Job,
    schema: Schema,
    parts: list[Part],
    shard: ShardBytes,
    place: tuple[int, int],
    result: _Result,
    thorough: bool,
) -> None:
    """Structure of a record and, if thorough, every value in it."""
    offset, length = place
    number = result.records
    try:
        record = index_record(shard.buffer, offset, offset + length, parts)
    except DataError as error:
        at = error.offset or offset
        result.findings.append(Finding(job.file, number, at, error.problem, field=error.field))
        return
    result.steps += record.steps
    if not thorough:
        return
    places = _Places(record, parts)
    fetch = partial(_fetch, shard, offset)
    for one in schema.fields:
        if one.kind == "unsupported":
            continue
        if one.is_camera:
            frames = range(record.steps) if job.decode == "all" else {0, record.steps - 1}
            _check_camera(job, one, places, fetch, result, sorted(frames), offset)
            continue
        try:
            values(one, places, fetch, 0, record.steps)
        except HeadraceError as error:
            at = offset + places.start(parts_of(one)[-1])
            result.findings.append(Finding(job.file, number, at, error.problem, field=one.key))


def _check_camera(
    job: _Job,
    camera: Field,
    places: _Places,
    fetch: Callable[[int, int], bytes],
    result: _Result,
    frames: list[int],
    offset: int,
) -> None:
    part = parts_of(camera)[0]
    ends = places.ends(part)
    for t in frames:
        if not 0 <= t < places.steps:
            continue
        where = offset + places.start(part) + (int(ends[t - 1]) if t and len(ends) else 0)
        found = partial(Finding, job.file, result.records, where, frame=t, field=camera.key)
        try:
            data = blobs(part, places, fetch, t, t + 1)[0]
            image = decode_frame(camera, data)
        except HeadraceError as error:
            result.findings.append(found(error.problem))
            continue
        result.frames_decoded += 1
        declared = camera.shape[:2]
        if any(d is not None and d != s for d, s in zip(declared, image.shape, strict=False)):
            size = f"{image.shape[0]}x{image.shape[1]}"
            expected = f"{declared[0]}x{declared[1]}"
            result.findings.append(
                found(f"the image is {size}, but features.json says {expected}", damage=False)
            )


class _Places:
    """A record that was just walked, in the form that `formats.extract` reads."""

    def __init__(self, record: RecordIndex, parts: list[Part]) -> None:
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


def _fetch(shard: ShardBytes, base: int, offset: int, length: int) -> bytes:
    return shard.read(base + offset, length)
