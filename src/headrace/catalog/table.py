"""The Arrow table of a catalog: one row per episode.

======================  =============  =====================================================
column                  type           meaning
======================  =============  =====================================================
``shard``               int32          which shard of the manifest
``offset``, ``length``  uint64         the record's payload in the shard
``steps``               uint32         number of steps (level "frames", as all that follows)
``start:KEY``           uint32         first byte of a part, relative to the payload; 0: none
``size:KEY``            uint32         bytes of a part, where they do not follow from the steps
``ends:KEY``            list<uint32>   where each step's blob ends, relative to the start
``crc:KEY``             list<uint32>   CRC-32C of each step's blob (not in a quick catalog)
======================  =============  =====================================================

The ends cost four bytes per frame and camera and locate every frame: its offset and length follow
from two neighbouring ends (`formats.example.blob_place`). The checksums cost four bytes more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.files import replacing
from headrace.formats.extract import BLOBS, SPAN, Part, RecordIndex

#: The largest gap between two ends whose length prefix takes 1, 2, 3, 4 bytes.
_LAST_GAPS = np.array([129, 16_386, 2_097_155, 268_435_460])
#: Rows are gathered into batches of about this size: large enough that even the largest dataset
#: has a few dozen, small enough that building stays far below 200 MB.
BATCH_BYTES = 16 << 20


def table_schema(parts: list[Part], level: str, checksums: bool) -> pa.Schema:
    """The columns of a catalog at a level, with or without the checksums of blobs."""
    columns = [("shard", pa.int32()), ("offset", pa.uint64()), ("length", pa.uint64())]
    if level == "frames":
        columns.append(("steps", pa.uint32()))
        for part in parts:
            columns.append((f"start:{part.key}", pa.uint32()))
            if part.storage == SPAN:
                columns.append((f"size:{part.key}", pa.uint32()))
            if part.storage == BLOBS:
                columns.append((f"ends:{part.key}", pa.list_(pa.uint32())))
                if checksums:
                    columns.append((f"crc:{part.key}", pa.list_(pa.uint32())))
    return pa.schema(columns)


class RowBuffer:
    """Gathers rows while a shard is scanned; in plain arrays, because this is a hot path."""

    def __init__(self, parts: list[Part], level: str, checksums: bool) -> None:
        self._parts = parts
        self._schema = table_schema(parts, level, checksums)
        self._level = level
        self._checksums = checksums
        self._clear()

    def _clear(self) -> None:
        self._places = array("Q")  # offset, length, offset, length, ...
        self._steps = array("I")
        self._starts = array("I")  # one per part and row
        self._sizes = array("I")
        self._ends = {p.key: array("I") for p in self._parts if p.storage == BLOBS}
        self._crcs = {key: array("I") for key in self._ends}
        self._counts = {key: array("i", [0]) for key in self._ends}

    @property
    def bytes(self) -> int:
        """Approximate size of the rows so far."""
        ends = sum(len(values) for values in self._ends.values())
        return 4 * ((1 + self._checksums) * ends + 2 * len(self._starts)) + 8 * len(self._places)

    def append(self, offset: int, length: int, record: RecordIndex | None) -> None:
        """Add an episode; without a record, one that could not be read."""
        self._places.append(offset)
        self._places.append(length)
        if self._level != "frames":
            return
        if record is None:
            record = RecordIndex(0, [0] * len(self._parts), [0] * len(self._parts), [], [])
        self._steps.append(record.steps)
        self._starts.extend(record.starts)
        self._sizes.extend(record.sizes)
        for part, ends, crcs in zip(self._parts, record.ends, record.crcs, strict=False):
            if ends:
                self._ends[part.key].extend(ends)
            if crcs:
                self._crcs[part.key].extend(crcs)
        for key, counts in self._counts.items():
            counts.append(len(self._ends[key]))

    def take(self, shard: int) -> pa.RecordBatch:
        """The rows so far as a record batch; the buffer is empty afterwards."""
        rows = len(self._places) // 2
        places = np.frombuffer(self._places, np.uint64).reshape(rows, 2)
        columns: list[Any] = [
            pa.array(np.full(rows, shard, np.int32)),
            pa.array(places[:, 0]),
            pa.array(places[:, 1]),
        ]
        if self._level == "frames":
            columns.append(pa.array(np.frombuffer(self._steps, np.uint32)))
            starts = np.frombuffer(self._starts, np.uint32).reshape(rows, len(self._parts))
            sizes = np.frombuffer(self._sizes, np.uint32).reshape(rows, len(self._parts))
            for index, part in enumerate(self._parts):
                columns.append(pa.array(starts[:, index]))
                if part.storage == SPAN:
                    columns.append(pa.array(sizes[:, index]))
                if part.storage == BLOBS:
                    offsets = pa.array(np.frombuffer(self._counts[part.key], np.int32))
                    lists = (self._ends, self._crcs) if self._checksums else (self._ends,)
                    for each in lists:
                        flat = pa.array(np.frombuffer(each[part.key], np.uint32))
                        columns.append(pa.ListArray.from_arrays(offsets, flat))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._clear()
        return batch


def write_table(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, durable: bool = True
) -> None:
    """Write batches to an Arrow IPC file, gathered into larger ones; see `files.replacing`."""
    with (
        replacing(path, durable=durable) as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        for table in _gathered(batches, schema):
            for batch in table.to_batches():
                writer.write_batch(batch)


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= BATCH_BYTES:
            yield pa.Table.from_batches(waiting, schema).combine_chunks()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()


class EpisodeTable:
    """A memory-mapped catalog table. Opening costs a few file system calls whatever its size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = pa.memory_map(str(path))
        self._reader = pa.ipc.open_file(self._source)
        # Views of the mapped pages, made on first use: making one with pyarrow is slow.
        self._columns: dict[str, NDArray[Any]] = {}
        self._flat: dict[str, list[tuple[NDArray[np.int32], NDArray[np.uint32]]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeTable, (self.path,)

    @cached_property
    def batches(self) -> list[pa.RecordBatch]:
        """The record batches; their buffers are pages of the file."""
        return [self._reader.get_batch(i) for i in range(self._reader.num_record_batches)]

    @cached_property
    def _first_rows(self) -> list[int]:
        """First row of every batch, and the number of rows."""
        return [0, *accumulate(batch.num_rows for batch in self.batches)]

    @property
    def rows(self) -> int:
        """Number of episodes."""
        return self._first_rows[-1]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def column(self, name: str) -> NDArray[Any]:
        """A column of plain numbers; not copied when the table has one batch."""
        found = self._columns.get(name)
        if found is None:
            chunks = [_numbers(batch.column(name)) for batch in self.batches]
            if len(chunks) == 1:
                found = chunks[0]
            else:
                found = np.concatenate(chunks) if chunks else np.zeros(0, np.uint32)
            self._columns[name] = found
        return found

    def value(self, name: str, row: int) -> int:
        """One number of a column."""
        return int(self.column(name)[row])

    def ends(self, key: str, row: int) -> NDArray[np.uint32]:
        """The ends of one episode's blobs, without a copy."""
        return self._list(f"ends:{key}", row)

    def crcs(self, key: str, row: int) -> NDArray[np.uint32] | None:
        """The checksums of one episode's blobs, without a copy; None in a quick catalog."""
        return self._list(f"crc:{key}", row) if self.checksums else None

    @cached_property
    def checksums(self) -> bool:
        """Whether it has the checksum of every blob."""
        return any(name.startswith("crc:") for name in self._reader.schema.names)

    def _list(self, name: str, row: int) -> NDArray[np.uint32]:
        if not 0 <= row < self.rows:
            raise IndexError(row)
        number = bisect_right(self._first_rows, row) - 1
        index = row - self._first_rows[number]
        offsets, values = self._lists(name)[number]
        return values[offsets[index] : offsets[index + 1]]

    def blob_places(
        self, key: str, rows: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Offset (relative to the list's start), length and checksum of many blobs at once.

        `rows` [n] are episodes, `steps` [n, k] steps of each; a step that an episode does not have
        gets length -1, and a blob whose checksum is not known -1 for it. The plain twin is `ends`
        with `formats.example.blob_place`, and `crcs`.
        """
        offsets = np.zeros(steps.shape, np.int64)
        lengths = np.full(steps.shape, -1, np.int64)
        crcs = np.full(steps.shape, -1, np.int64)
        firsts = self._first_rows
        checks = self._lists(f"crc:{key}") if self.checksums else None
        for number, (bounds, values) in enumerate(self._lists(f"ends:{key}")):
            here = (rows >= firsts[number]) & (rows < firsts[number + 1])
            if not here.any():
                continue
            row = rows[here] - firsts[number]
            first, last = bounds[row].astype(np.int64), bounds[row + 1].astype(np.int64)
            at = first[:, None] + steps[here]
            present = (steps[here] >= 0) & (at < last[:, None])
            at = np.where(present, at, 0)
            end = values[at].astype(np.int64) if len(values) else np.zeros(at.shape, np.int64)
            before = (
                np.where(steps[here] > 0, values[np.maximum(at - 1, 0)], 0) if len(values) else 0
            )
            gap = end - before
            width = 1 + np.searchsorted(_LAST_GAPS, gap)
            lengths[here] = np.where(present, gap - 1 - width, -1)
            offsets[here] = end - (gap - 1 - width)
            if checks is not None and len(values):  # as many as ends, in the same order
                found = checks[number][1][at].astype(np.int64)
                crcs[here] = np.where(present, found, -1)
        return offsets, lengths, crcs

    def total_ends(self, key: str) -> tuple[int, int]:
        """How many blobs a key has in all, and the bytes they take with their prefixes."""
        count = size = 0
        for offsets, values in self._lists(f"ends:{key}"):
            count += len(values)
            last = offsets[1:][np.diff(offsets) > 0] - 1
            size += int(values[last].sum(dtype=np.uint64))
        return count, size

    def slice(self, first: int, count: int) -> Iterator[pa.RecordBatch]:
        """Rows [first, first + count) as record batches."""
        for batch, start in zip(self.batches, self._first_rows, strict=False):
            begin, end = max(first, start), min(first + count, start + batch.num_rows)
            if begin < end:
                yield batch.slice(begin - start, end - begin)

    def _lists(self, name: str) -> list[tuple[NDArray[np.int32], NDArray[np.uint32]]]:
        """Offsets and values of a column of lists, batch by batch."""
        found = self._flat.get(name)
        if found is None:
            columns = [batch.column(name) for batch in self.batches]
            found = [(_numbers(column.offsets), _numbers(column.values)) for column in columns]
            self._flat[name] = found
        return found


def _numbers(column: Any) -> NDArray[Any]:
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return numbers
