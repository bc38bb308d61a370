"""A dataset as a random-access array: any frame or field of any episode by its byte range."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.build import Prepared, prepare
from headrace.catalog.manifest import LEVELS, UNCHECKED, ShardStamp
from headrace.catalog.shards import BuildProgress, ShardPool
from headrace.catalog.source import Roles, find_roles
from headrace.catalog.splits import Rounding, resolve_split
from headrace.catalog.table import EpisodeTable
from headrace.decoding.frame import PixelType, decode_image
from headrace.errors import CatalogError, HeadraceError, SelectionError, SplitError, UsageError
from headrace.formats.example import blob_place
from headrace.formats.extract import BLOBS, FIXED, Part, check_blob, parts_of, values
from headrace.formats.features import Field, Schema
from headrace.reading.local import ByteRange, LocalFiles, shared_files

Level = Literal["episodes", "frames"]


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What a catalog knows of one episode."""

    number: int  #: its number in the catalog
    id: str  #: stable across runs and machines: "split/shard/record"
    split: str  #: split it belongs to
    file: str  #: shard, relative to the dataset's folder
    record: int  #: its number in the shard
    offset: int  #: first byte of its record's payload in the shard
    length: int  #: bytes of the payload
    steps: int | None  #: number of steps; None in a catalog of level "episodes"


class FramePlaces(NamedTuple):
    """Where many frames lie; all but `shards` are [n, k]."""

    shards: NDArray[np.int64]  #: [n]; `Catalog.shard_file` gives a shard's path
    offsets: NDArray[np.int64]  #: in the file
    lengths: NDArray[np.int64]  #: -1: there is no such frame
    crcs: NDArray[np.int64]  #: the frame's CRC-32C; -1: not known, in a catalog of `--quick`


class Catalog:
    """The index of one dataset.

    >>> import headrace as hr
    >>> catalog = hr.Catalog.open("oxe/bridge/0.1.0")            # doctest: +SKIP
    >>> episode = catalog.episodes("train[:90%]")[0]             # doctest: +SKIP
    >>> catalog.frame(episode, t=3, camera="image").shape        # doctest: +SKIP
    (480, 640, 3)
    >>> catalog.read(episode, "action/world_vector", 0, 5).shape # doctest: +SKIP
    (5, 3)
    """

    def __init__(self, prepared: Prepared, files: LocalFiles) -> None:
        dataset = prepared.dataset
        self.path = dataset.path
        self.name = dataset.name
        self.version = dataset.version
        self.folder = prepared.folder
        self.manifest = prepared.manifest
        self._prepared = prepared
        self._dataset = dataset
        self._table = prepared.table
        self._files = files

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the same index, mapped there, with that process's open files."""
        return _same_catalog, (self._prepared,)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        level: Level = "frames",
        quick: bool | None = None,
        on_damage: Literal["raise", "quarantine"] = "raise",
        cache: bool = False,
        workers: int | None = None,
        progress: BuildProgress | None = None,
        pool: ShardPool | None = None,
        files: LocalFiles | None = None,
    ) -> Catalog:
        """Open the catalog of the dataset in a version folder; build what is missing or stale.

        - `level`: "episodes" hops over records only; "frames" knows every frame.
        - `quick`: a catalog that is built reads and checks all bytes and keeps the checksum of
          every frame, so that a damaged one is never delivered; True hops over the images instead
          (`checksums`), False renews a catalog that was built so.
        - `on_damage`: "quarantine" leaves out episodes that cannot be indexed instead of raising.
        - `cache`: keep the catalog in the cache folder even if the dataset's can be written.
        """
        if level not in LEVELS:
            raise UsageError(f"unknown level {level!r}", remedy=f"Choose from {LEVELS}")
        if on_damage not in ("raise", "quarantine"):
            raise UsageError(
                f"unknown on_damage {on_damage!r}", remedy="Choose 'raise' or 'quarantine'"
            )
        prepared = prepare(
            path,
            level=level,
            quick=quick,
            quarantine=on_damage == "quarantine",
            cache=cache,
            workers=workers,
            progress=progress,
            pool=pool,
        )
        return cls(prepared, files or shared_files())

    # -- what is in it -------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The fields of its episodes."""
        return self._dataset.schema

    @cached_property
    def roles(self) -> Roles:
        """Main camera, action, state and instruction, as far as they could be found."""
        return find_roles(self.schema, self.path)

    @property
    def level(self) -> str:
        """ "episodes" or "frames"."""
        return self.manifest.level

    @property
    def checksums(self) -> bool:
        """Whether frames are checked when they are read; not in a catalog of `--quick`."""
        return self.manifest.checksums

    @property
    def nbytes(self) -> int:
        """Bytes of the catalog on disk."""
        return self._table.nbytes + (self.folder / "manifest.json").stat().st_size

    @property
    def splits(self) -> dict[str, list[ShardStamp]]:
        """Split name to its shards."""
        found: dict[str, list[ShardStamp]] = {name: [] for name in self._dataset.splits}
        for stamp in self.manifest.shards:
            found[stamp.split].append(stamp)
        return found

    @cached_property
    def steps(self) -> NDArray[np.uint32]:
        """Number of steps of every episode."""
        self._need_frames()
        return self._table.column("steps")

    @cached_property
    def quarantined(self) -> frozenset[int]:
        """Numbers of the episodes that are left out because they are damaged."""
        first = dict(zip((s.file for s in self.manifest.shards), self.first_rows, strict=False))
        return frozenset(first[d.file] + d.record for d in self.manifest.quarantine)

    def mean_frame_bytes(self, camera: str) -> float | None:
        """Mean bytes of an encoded frame of a camera; None if there is no frame."""
        self._need_frames()
        count, size = self._table.total_ends(self._camera(camera).key)
        if not count:
            return None
        offset, _ = blob_place(0, round(size / count))  # tag and length before each frame
        return size / count - offset

    def __len__(self) -> int:
        """Number of episodes, all splits together."""
        return self.first_rows[-1]

    def __repr__(self) -> str:
        unchecked = "" if self.checksums or self.level != "frames" else f", {UNCHECKED}"
        return (
            f"<Catalog {self.name} {self.version}: {len(self)} episodes, level {self.level}"
            f"{unchecked}>"
        )

    def episodes(self, split: str, *, rounding: Rounding = "closest") -> NDArray[np.int64]:
        """Numbers of a split's episodes, such as `"train[:90%]"`: exactly those TFDS would read.

        Quarantined episodes are left out; they do not shift the others.
        """
        parts = resolve_split(split, self._dataset.splits, rounding=rounding, dataset=self._title)
        first: dict[str, int] = {}
        for stamp, row in zip(self.manifest.shards, self.first_rows, strict=False):
            first.setdefault(stamp.split, row)
        chosen = np.concatenate(
            [np.arange(first[p.split] + p.start, first[p.split] + p.stop) for p in parts]
        )
        if self.quarantined:
            chosen = chosen[~np.isin(chosen, list(self.quarantined))]
            if not len(chosen):
                raise SplitError(
                    f"split {split!r} selects only quarantined episodes",
                    dataset=self._title,
                    remedy="`headrace verify` lists them",
                )
        return chosen

    def info(self, episode: int) -> EpisodeInfo:
        """Where an episode lies and how long it is."""
        row = self._row(episode)
        number = self._shard_number(row)
        stamp, record = self.manifest.shards[number], row - self.first_rows[number]
        shard = self.splits[stamp.split].index(stamp)
        return EpisodeInfo(
            number=row,
            id=f"{stamp.split}/{shard:05d}/{record}",
            split=stamp.split,
            file=stamp.file,
            record=record,
            offset=self._table.value("offset", row),
            length=self._table.value("length", row),
            steps=self._table.value("steps", row) if self.level == "frames" else None,
        )

    # -- reading -------------------------------------------------------------------------------

    def place(self, episode: int, t: int, camera: str | None = None) -> ByteRange:
        """The byte range of the encoded frame t of a camera (default: the main camera)."""
        row, field = self._row(episode), self._camera(camera)
        part = parts_of(field)[0]
        t = self._step(row, t)
        ends = self._table.ends(part.key, row)
        if len(ends) <= t:
            raise self._located(
                SelectionError(
                    f"this episode has no {field.name!r}", remedy="Choose another camera"
                ),
                row,
                frame=t,
                field=field.key,
            )
        offset, length = blob_place(int(ends[t - 1]) if t else 0, int(ends[t]))
        start = self._table.value("offset", row) + self._table.value(f"start:{part.key}", row)
        return self._range(row, start + offset, length)

    def places(
        self, episodes: NDArray[np.int64], steps: NDArray[np.int64], camera: str | None = None
    ) -> FramePlaces:
        """The places of many frames at once, for episodes [n] and steps [n, k].

        The plain twin is `place`.
        """
        self._need_frames()
        key = parts_of(self._camera(camera))[0].key
        offsets, lengths, crcs = self._table.blob_places(key, episodes, steps)
        base = self._table.column("offset")[episodes].astype(np.int64)
        base += self._table.column(f"start:{key}")[episodes].astype(np.int64)
        shards = self._table.column("shard")[episodes].astype(np.int64)
        return FramePlaces(shards, base[:, None] + offsets, lengths, crcs)

    def fixed_places(
        self, field: Field, episodes: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """File offset of a float field's numbers at many steps; -1 where an episode has none."""
        (part,) = parts_of(field)
        start = self._table.column(f"start:{part.key}")[episodes].astype(np.int64)
        base = self._table.column("offset")[episodes].astype(np.int64)
        return np.where(start > 0, base + start + part.step_bytes * steps, -1)

    def span_places(
        self, field: Field, episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """File offset and size of a field that is read as a whole, of many episodes."""
        (part,) = parts_of(field)
        start = self._table.column(f"start:{part.key}")[episodes].astype(np.int64)
        base = self._table.column("offset")[episodes].astype(np.int64)
        return base + start, self._table.column(f"size:{part.key}")[episodes].astype(np.int64)

    def shard_file(self, shard: int) -> tuple[str, tuple[int, int]]:
        """Path of a shard, and the size and time of change it must have."""
        return self._files_of_shards[shard]

    def encoded(self, episode: int, t: int, camera: str | None = None) -> bytes:
        """The encoded bytes of frame t of a camera, as they are in the file, and checked."""
        where = self.place(episode, t, camera)
        row, field = self._row(episode), self._camera(camera)
        t = self._step(row, t)
        try:
            data = self._files.read(where)
            crcs = self._table.crcs(parts_of(field)[0].key, row)
            if crcs is not None:
                check_blob(data, int(crcs[t]))
            return data
        except HeadraceError as error:
            error.within(offset=where.offset, field=field.key)
            raise self._located(error, row, frame=t) from None

    def frame(self, episode: int, t: int, camera: str | None = None) -> NDArray[Any]:
        """The decoded frame t of a camera: [height, width, channels]."""
        data, field = self.encoded(episode, t, camera), self._camera(camera)
        try:
            return decode_frame(field, data)
        except HeadraceError as error:
            row = self._row(episode)
            error.within(offset=self.place(episode, t, camera).offset, field=field.key)
            raise self._located(error, row, frame=self._step(row, t)) from None

    def read(self, episode: int, field: str, start: int = 0, stop: int | None = None) -> Any:
        """A field's values for steps [start, stop), or an episode's own field whole.

        Numbers come as an array [steps, ...] of the field's dtype, strings and encoded images as
        an object array of bytes, ragged fields as lists of arrays. Negative steps count from the
        end as in a slice.
        """
        self._need_frames()
        row = self._row(episode)
        found = self._find(field)
        places = _RowPlaces(self._table, row)
        first, last, _ = slice(start, stop).indices(places.steps)
        base = self._table.value("offset", row)
        try:
            return values(
                found,
                places,
                lambda offset, length: self._files.read(self._range(row, base + offset, length)),
                first,
                max(first, last),
            )
        except HeadraceError as error:
            error.within(offset=base)
            raise self._located(error, row) from None

    def instruction(self, episode: int, t: int = 0, field: str | None = None) -> str:
        """The instruction at step t as text, also where it is stored as code points; "" if none."""
        role = self._find(field) if field else self.roles.language
        if role is None:
            return ""
        value = self.read(episode, role.key, t, t + 1)
        if not len(value):
            return ""
        if role.is_string:
            return bytes(value[0]).decode("utf-8", "replace")
        codes = value[0].reshape(-1)
        known = codes[(codes > 0) & (codes < 0x110000)]
        text: str = known.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return text

    # -- internals -----------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        return self._dataset.title

    @cached_property
    def first_rows(self) -> list[int]:
        """First row of every shard, and the number of rows."""
        return [0, *accumulate(stamp.episodes for stamp in self.manifest.shards)]

    def _row(self, episode: int) -> int:
        if not 0 <= episode < len(self):
            raise SelectionError(
                f"no episode {episode}: the catalog has {len(self)}",
                dataset=self._title,
                remedy="`catalog.episodes(split)` gives the numbers of a split",
            )
        return int(episode)

    def _step(self, row: int, t: int) -> int:
        self._need_frames()
        steps = self._table.value("steps", row)
        if not -steps <= t < steps:
            raise self._located(
                SelectionError(f"no step {t}: the episode has {steps}"), row, frame=t
            )
        return t % steps

    def _need_frames(self) -> None:
        if self.level != "frames":
            raise CatalogError(
                "this catalog knows episodes only, not their steps and frames",
                dataset=self._title,
                file=str(self.folder),
                remedy='Open it with level="frames", or run `headrace index` without --level',
            )

    def _find(self, name: str) -> Field:
        try:
            return self.schema.find(name)
        except HeadraceError as error:
            raise error.within(dataset=self._title) from None

    def _camera(self, name: str | None) -> Field:
        try:
            if name is not None:
                return self.schema.find(name, among="camera")
            return self.roles.main_camera()
        except HeadraceError as error:
            raise error.within(dataset=self._title) from None

    @cached_property
    def _files_of_shards(self) -> list[tuple[str, tuple[int, int]]]:
        """Path and stamp of every shard."""
        return [
            (str(self.path / stamp.file), (stamp.size, stamp.mtime_ns))
            for stamp in self.manifest.shards
        ]

    def _shard_number(self, row: int) -> int:
        return bisect_right(self.first_rows, row) - 1

    def _range(self, row: int, offset: int, length: int) -> ByteRange:
        path, stamp = self._files_of_shards[self._shard_number(row)]
        return ByteRange(path, offset, length, stamp)

    def _located(self, error: HeadraceError, row: int, **places: Any) -> HeadraceError:
        """An error with dataset, file and episode filled in."""
        return error.within(
            dataset=self._title,
            file=self._files_of_shards[self._shard_number(row)][0],
            episode=self.info(row).id,
            **places,
        )


def _same_catalog(prepared: Prepared) -> Catalog:
    return Catalog(prepared, shared_files())


def decode_frame(camera: Field, data: bytes) -> NDArray[Any]:
    """[height, width, channels] of the camera's dtype, equal to what TFDS gives."""
    channels = camera.shape[-1] if camera.shape else None
    return decode_image(data, channels=channels, dtype=cast(PixelType, camera.dtype))


class _RowPlaces:
    """One row of the table in the form that `formats.extract` reads."""

    def __init__(self, table: EpisodeTable, row: int) -> None:
        self._table, self._row = table, row
        self.steps = table.value("steps", row)
        self.origin = table.value("offset", row)

    def start(self, part: Part) -> int:
        return self._table.value(f"start:{part.key}", self._row)

    def size(self, part: Part) -> int:
        if part.storage == FIXED:
            return self.steps * part.step_bytes
        assert part.storage != BLOBS
        return self._table.value(f"size:{part.key}", self._row)

    def ends(self, part: Part) -> NDArray[np.uint32]:
        return self._table.ends(part.key, self._row)

    def crcs(self, part: Part) -> NDArray[np.uint32] | None:
        return self._table.crcs(part.key, self._row)
