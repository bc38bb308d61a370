"""Where a record stores each field, and the values of a field for a range of steps.

A field of the schema is stored under one or more names in a record (a ragged field has its flat
values and row lengths, a tensor that carries its shape has a shape and a value). Each such name is
a *part*. An index keeps, per episode and part:

- **fixed** numbers: where they start; their size follows from the number of steps;
- **blobs** (images, encoded tensors): where they start, where each step's blob ends, and the
  CRC-32C of each, if the index has read them;
- **spans** (varints, texts, ragged values): where they start and how many bytes they have.

`index_record` finds the parts in a record, `values` reads only the bytes that a range of steps
needs.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from headrace.errors import ImageError, RecordError, UnknownFieldError
from headrace.formats.example import (
    BYTES,
    EMPTY,
    FLOATS,
    INTS,
    Readable,
    blob_ends,
    blob_place,
    packed_place,
    walk,
)
from headrace.formats.features import Field, Schema
from headrace.formats.tfrecord import Buffer

FIXED, BLOBS, SPAN = "fixed", "blobs", "span"
ABSENT = 0  #: start of a part that a record has no values of; no list can start at byte 0
#: The most bytes of one decoded tensor. Not measured: far above any step of robot data
#: (a 4k float image is 100 MB) and far below what would exhaust a workstation.
MAX_TENSOR_BYTES = 256 << 20
_DAMAGED = "The record is damaged; `headrace verify` checks its checksum"


# Parts, and finding them in a record.


@dataclass(frozen=True, slots=True)
class Part:
    """One name in a record."""

    key: str  #: as in the record
    list_kind: int  #: BYTES, FLOATS or INTS
    storage: str  #: FIXED, BLOBS or SPAN
    step_bytes: int = 0  #: FIXED: bytes of one step's numbers
    step_items: int | None = None  #: elements of the list a step has, if that is fixed


@dataclass(slots=True)
class RecordIndex:
    """The places of all parts in one record, relative to its payload's first byte."""

    steps: int
    starts: list[int]  #: one a part, ABSENT where the record has no values of it
    sizes: list[int]  #: one a part
    ends: list[array[int] | None]  #: one a part, None unless BLOBS
    crcs: list[array[int] | None]  #: one a part, None unless BLOBS of a record that was read


@cache
def parts_of(field: Field) -> tuple[Part, ...]:
    """The parts in which a field is stored."""
    if field.kind == "unsupported":
        return ()
    leaves: list[tuple[str, int, int | None]] = []  # key, kind of list, elements a value
    if field.stores_shape:
        leaves.append((f"{field.key}/shape", INTS, len(field.shape)))
        leaves.append((f"{field.key}/value", BYTES, 1))
    elif field.kind == "image" or field.encoding is not None:
        leaves.append((field.key, BYTES, 1))
    elif field.is_string:
        leaves.append((field.key, BYTES, field.width))
    elif field.np_dtype.kind == "f":
        leaves.append((field.key, FLOATS, field.width))
    else:
        leaves.append((field.key, INTS, field.width))

    parts: list[Part] = []
    for key, list_kind, items in leaves:
        if field.ragged:
            parts.append(Part(f"{key}/ragged_flat_values", list_kind, SPAN))
            rows = field.nesting + field.per_step - 1
            parts += [Part(f"{key}/ragged_row_lengths_{k}", INTS, SPAN) for k in range(rows)]
        elif field.per_step and list_kind == FLOATS and items is not None:
            parts.append(Part(key, FLOATS, FIXED, 4 * items, items))
        elif field.per_step and list_kind == BYTES and not field.is_string:
            parts.append(Part(key, BYTES, BLOBS, step_items=1))
        else:
            parts.append(Part(key, list_kind, SPAN, step_items=items if field.per_step else None))
    return tuple(parts)


def plan(schema: Schema) -> list[Part]:
    """All parts of a schema, in the order of its fields."""
    return [part for field in schema.fields for part in parts_of(field)]


def index_record(
    buffer: Readable, start: int, stop: int, parts: list[Part], payload: memoryview | None = None
) -> RecordIndex:
    """The places of all parts in the record whose payload is at [start, stop).

    Given the `payload` itself, every blob's checksum too: this reads all of their bytes.
    """
    found = walk(buffer, start, stop)
    if parts and not any(part.key in found for part in parts):
        raise RecordError(
            "the record has none of the fields that features.json declares",
            offset=start,
            remedy="features.json belongs to another dataset, or the record is damaged",
        )
    starts: list[int] = []
    sizes: list[int] = []
    ends: list[array[int] | None] = []
    for part in parts:
        place = found.get(part.key)
        part_ends: array[int] | None = None
        if place is None or place.kind == EMPTY or place.start == place.stop:
            first = last = start + ABSENT  # TFDS writes an empty list or no list for no values
        elif place.kind != part.list_kind:
            raise RecordError(
                f"the record stores {part.key!r} as {place.kind_name}, but features.json declares "
                "another type",
                field=part.key,
                offset=place.start,
                remedy="features.json belongs to another version of the dataset",
            )
        elif place.kind == BYTES:
            first, last = place.start, place.stop
            if part.storage == BLOBS:
                part_ends = blob_ends(buffer, first, last)
        else:
            first, last = packed_place(buffer, place)
        starts.append(first - start)
        sizes.append(last - first)
        ends.append(part_ends)
    crcs = [
        None if payload is None or each is None else _checksums(payload, first, each)
        for first, each in zip(starts, ends, strict=True)
    ]
    record = RecordIndex(0, starts, sizes, ends, crcs)
    record.steps = _count_steps(buffer, start, parts, record)
    _check_steps(start, parts, record)
    return record


def _checksums(payload: memoryview, start: int, ends: array[int]) -> array[int]:
    """The CRC-32C of each blob of a list that starts at `start`."""
    crcs, before = array("I"), 0
    for end in ends:
        _, length = blob_place(before, end)
        crcs.append(crc32c(payload[start + end - length : start + end]))
        before = end
    return crcs


def _count_steps(buffer: Readable, start: int, parts: list[Part], record: RecordIndex) -> int:
    """The number of steps, from the first part that determines it."""
    for part, part_ends in zip(parts, record.ends, strict=True):
        if part.storage == BLOBS and part_ends:
            return len(part_ends)
    for part, size in zip(parts, record.sizes, strict=True):
        if part.storage == FIXED and size and part.step_bytes:
            return size // part.step_bytes
    for part, first, size in zip(parts, record.starts, record.sizes, strict=True):
        if not (part.step_items and size):
            continue
        at = start + first
        if part.list_kind == BYTES:
            return len(blob_ends(buffer, at, at + size)) // part.step_items
        numbers = sum(byte < 0x80 for byte in bytes(buffer[at : at + size]))
        return numbers // part.step_items
    for part, first, size in zip(parts, record.starts, record.sizes, strict=True):
        if part.key.endswith("/ragged_row_lengths_0") and size:
            at = start + first
            return sum(byte < 0x80 for byte in bytes(buffer[at : at + size]))
    return 0


def _check_steps(start: int, parts: list[Part], record: RecordIndex) -> None:
    """Raise unless all parts that determine the number of steps agree, or are empty."""
    steps, columns = record.steps, (record.starts, record.sizes, record.ends)
    for part, first, size, part_ends in zip(parts, *columns, strict=True):
        if part.storage == FIXED and size not in (0, steps * part.step_bytes):
            has, unit = size // 4, "numbers"
            wants = steps * part.step_bytes // 4
        elif part_ends and len(part_ends) != steps:
            has, unit = len(part_ends), "blobs"
            wants = steps
        else:
            continue
        raise RecordError(
            f"{part.key!r} has {has:,} {unit}, but {steps:,} steps need {wants:,}",
            field=part.key,
            offset=start + first,
            remedy="The record is damaged, or features.json belongs to another version",
        )


# Values.

Shape = tuple[int | None, ...]
Fetch = Callable[[int, int], bytes]  #: (offset, length) relative to the record's payload


class EpisodePlaces(Protocol):
    """The places of the parts of one episode, as an index keeps them."""

    @property
    def origin(self) -> int:
        """First byte of the record's payload in the file."""

    @property
    def steps(self) -> int:
        """Number of steps."""

    def start(self, part: Part) -> int:
        """First byte of a part, relative to the payload; 0 if the episode has no values of it."""

    def size(self, part: Part) -> int:
        """Bytes of a part that is not made of blobs."""

    def ends(self, part: Part) -> NDArray[np.uint32]:
        """Where each blob of a part ends, relative to its start."""

    def crcs(self, part: Part) -> NDArray[np.uint32] | None:
        """The checksum of each blob of a part; None if the index has not read them."""


def values(field: Field, places: EpisodePlaces, fetch: Fetch, start: int, stop: int) -> Any:
    """A field's values for steps [start, stop); for an episode's field, its one value.

    Numbers come as an array [steps, *shape] of the field's dtype, strings and encoded images as an
    object array of bytes, ragged fields as (nested) lists of arrays.
    """
    if field.kind == "unsupported":
        raise UnknownFieldError(
            f"{field.key!r} has a type that headrace cannot read ({field.dtype})",
            remedy="Choose another field; the others of the dataset are not affected",
        )
    try:
        return _FieldReader(field, parts_of(field), places, fetch).read(start, stop)
    except (RecordError, ImageError) as error:
        raise error.within(field=field.key) from None


def blobs(part: Part, places: EpisodePlaces, fetch: Fetch, start: int, stop: int) -> list[bytes]:
    """The blobs of steps [start, stop), in one read."""
    ends = places.ends(part)
    if len(ends) < stop:
        raise _absent(part, len(ends), places.steps)
    if start == stop:
        return []
    base = int(ends[start - 1]) if start else 0
    data = fetch(places.start(part) + base, int(ends[stop - 1]) - base)
    found = _cut(data, base, ends[start:stop].tolist())
    crcs = places.crcs(part)
    if crcs is not None:
        for step, (blob, crc) in enumerate(zip(found, crcs[start:stop].tolist(), strict=True)):
            try:
                check_blob(blob, crc)
            except ImageError as error:
                at = places.start(part) + int(ends[start + step]) - len(blob)
                raise error.within(offset=places.origin + at, frame=start + step) from None
    return found


def check_blob(data: Buffer, crc: int) -> None:
    """Raise unless the bytes of a frame (or tensor) are those that were indexed."""
    if crc32c(data) != crc:
        raise ImageError(
            "the checksum of a frame is wrong: its bytes are not those that were indexed",
            remedy="The file was damaged after it was indexed: fetch it again, or leave out what "
            "is damaged (`headrace verify --quarantine`)",
        )


def _cut(data: bytes, base: int, ends: Iterable[int]) -> list[bytes]:
    """The blobs with these ends, of which `data` holds the bytes from `base` on."""
    before, found = base, []
    for end in ends:
        offset, length = blob_place(before, end)
        found.append(data[offset - base : offset - base + length])
        before = end
    return found


def _absent(part: Part, has: int, steps: int) -> RecordError:
    return RecordError(
        f"this episode has no {part.key!r}"
        if not has
        else f"{part.key!r} has {has} values, not {steps}",
        field=part.key,
        remedy="The schema declares it but this record lacks it: choose another camera or field, "
        "or exclude the episode",
    )


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """Reads one field of one episode."""

    field: Field
    parts: tuple[Part, ...]
    places: EpisodePlaces
    fetch: Fetch

    def read(self, start: int, stop: int) -> Any:
        if self.field.ragged:
            return self._ragged(start, stop)
        if self.parts[0].storage == FIXED:
            return self._fixed(start, stop)
        if self.parts[-1].storage == BLOBS:
            return self._encoded(start, stop)
        return self._span(start, stop) if self.field.per_step else self._episode_value()

    def _fixed(self, start: int, stop: int) -> NDArray[Any]:
        part, shape = self.parts[0], (stop - start, *_sizes(self.field))
        if not part.step_bytes or start == stop:
            return np.zeros(shape, self.field.np_dtype)
        first = self.places.start(part)
        if not first:
            raise _absent(part, 0, self.places.steps)
        width = part.step_bytes
        data = self.fetch(first + start * width, (stop - start) * width)
        return np.frombuffer(data, "<f4").reshape(shape).astype(self.field.np_dtype)

    def _encoded(self, start: int, stop: int) -> Any:
        """Images, still encoded, or decoded tensors."""
        field = self.field
        raw = blobs(self.parts[-1], self.places, self.fetch, start, stop)
        if field.kind == "image":
            return _objects(raw)
        tensors = self._tensors(raw, self._shapes(self.places.steps)[start:stop])
        if None in field.shape:
            return tensors
        return np.stack(tensors) if tensors else np.zeros((0, *_sizes(field)), field.np_dtype)

    def _span(self, start: int, stop: int) -> Any:
        """Varints and texts, whose steps have no fixed place."""
        field, part, steps = self.field, self.parts[0], self.places.steps
        width = field.width
        if width is None:
            raise RecordError(f"a step's {field.key!r} has no fixed number of values")
        shape = (stop - start, *_sizes(field))
        if part.list_kind == INTS and self.places.size(part):
            data = self.fetch(self.places.start(part), self.places.size(part))
            wanted = decode_varints(data, start * width, stop * width, count=steps * width)
            return _typed(wanted, field).reshape(shape)
        flat = self._list(part)
        if len(flat) != steps * width:
            raise _absent(part, len(flat), steps)
        return _typed(flat[start * width : stop * width].reshape(shape), field)

    def _episode_value(self) -> Any:
        field, flat = self.field, self._list(self.parts[-1])
        if field.nesting == 0 and field.width and not len(flat):
            raise _absent(self.parts[-1], 0, 1)
        if field.kind == "image":
            return flat if field.nesting else flat[0]
        if field.encoding is not None:
            tensors = self._tensors(flat, self._shapes(len(flat)))
            return tensors if field.nesting else tensors[0]
        sizes = [-1 if size is None else size for size in field.shape]
        if -1 in sizes and field.nesting:
            raise RecordError(f"{field.key!r} has two unknown dimensions")
        whole = _typed(flat, field).reshape([-1, *sizes] if field.nesting else sizes)
        return whole if field.nesting or field.shape else whole[()]

    def _ragged(self, start: int, stop: int) -> Any:
        """Nested lists of arrays, rebuilt from flat values and row lengths."""
        field = self.field
        rows = field.nesting + field.per_step - 1
        value_parts = self.parts[rows + 1 :] if field.stores_shape else self.parts
        flat, *lengths = (self._list(part) for part in value_parts)
        level: Any
        if field.kind == "image":
            level = flat
        elif field.encoding is not None:
            level = _objects(self._tensors(flat, self._shapes(len(flat))))
        else:
            if field.width is None or (len(flat) % field.width if field.width else len(flat)):
                raise RecordError(f"{len(flat)} flat values do not fill rows of {field.shape}")
            level = _typed(flat, field).reshape(-1, *_sizes(field))
        for row_lengths in reversed(lengths):
            stops = np.cumsum(row_lengths)
            total = int(stops[-1]) if len(stops) else 0
            if (row_lengths < 0).any() or total != len(level):
                raise RecordError(f"row lengths sum to {total}, not to {len(level)} values")
            firsts = stops - row_lengths
            level = [level[a:b] for a, b in zip(firsts.tolist(), stops.tolist(), strict=True)]
        if not field.per_step:
            return level
        if len(level) != self.places.steps:
            raise RecordError(f"{len(level)} rows for {self.places.steps} steps")
        return level[start:stop]

    def _list(self, part: Part) -> NDArray[Any]:
        """All elements of a span: numbers, or an object array of bytes."""
        size = self.places.size(part)
        data = self.fetch(self.places.start(part), size) if size else b""
        if part.list_kind == INTS:
            return decode_varints(data)
        if part.list_kind == FLOATS:
            return np.frombuffer(data, "<f4")
        return _objects(_cut(data, 0, blob_ends(data, 0, len(data))))

    def _tensors(self, raw: Iterable[bytes], shapes: list[Shape]) -> list[NDArray[Any]]:
        return [decode_tensor(d, self.field, s) for d, s in zip(raw, shapes, strict=True)]

    def _shapes(self, count: int) -> list[Shape]:
        """The shape of each of `count` encoded tensors: the schema's, or the one stored with it."""
        declared = self.field.shape
        if not self.field.stores_shape:
            return [declared] * count
        flat = self._list(self.parts[0])
        if len(flat) != count * len(declared):
            raise RecordError(f"{len(flat)} stored sizes for {count} tensors of shape {declared}")
        rows = flat.reshape(count, len(declared)).tolist()
        for row in rows:
            for size, stored in zip(declared, row, strict=True):
                if stored < 0 or (size is not None and size != stored):
                    raise RecordError(f"stored shape {tuple(row)} does not fit {declared}")
        return [tuple(row) for row in rows]


def _objects(items: list[Any]) -> NDArray[np.object_]:
    """A list as an object array; arrays in it stay elements."""
    array = np.empty(len(items), object)
    for index, item in enumerate(items):  # assigning the list would unpack arrays of equal shape
        array[index] = item
    return array


def _typed(flat: NDArray[Any], field: Field) -> NDArray[Any]:
    return flat if flat.dtype == object else flat.astype(field.np_dtype)


def _sizes(field: Field) -> list[int]:
    return [size for size in field.shape if size is not None]


# Packed numbers and encoded tensors.


def decode_varints(
    data: bytes, start: int = 0, stop: int | None = None, *, count: int | None = None
) -> NDArray[np.int64]:
    """The int64 values [start, stop) of a packed Int64List.

    With `count`, a list of another length is an error.

    >>> decode_varints(bytes([1, 0xAC, 0x02])).tolist()
    [1, 300]
    """
    raw = np.frombuffer(data, np.uint8)
    last = raw < 0x80
    stops = np.flatnonzero(last)
    if len(raw) and (not len(stops) or stops[-1] != len(raw) - 1):
        raise RecordError("a list of integers ends inside a number")
    if count is not None and len(stops) != count:
        raise RecordError(f"a list of integers has {len(stops):,} values, not {count:,}")
    if len(stops) == len(raw):  # flags and text: every number is one byte
        return raw[start:stop].astype(np.int64)
    if start or stop is not None:
        first = stops[start - 1] + 1 if start else 0
        stops = stops[start:stop] - first
        raw = raw[first : first + stops[-1] + 1] if len(stops) else raw[:0]
        if not len(stops):
            return np.zeros(0, np.int64)
    starts = np.concatenate(([0], stops[:-1] + 1))
    widths = stops - starts + 1
    widest = int(widths.max())
    if widest > 10:
        raise RecordError("a list of integers holds a number of more than 10 bytes")
    values = np.zeros(len(stops), np.uint64)
    for k in range(widest):
        wide = widths > k
        digits = (raw[starts[wide] + k] & 0x7F).astype(np.uint64)
        values[wide] |= digits << np.uint64(7 * k)
    return values.view(np.int64)


def decode_tensor(
    data: bytes, field: Field, shape: Shape, limit: int = MAX_TENSOR_BYTES
) -> NDArray[Any]:
    """One `bytes`- or `zlib`-encoded tensor of `shape`, in which one dimension may be unknown."""
    dtype = field.np_dtype
    known = math.prod(size for size in shape if size is not None)
    open_ended = None in shape
    expected = known * dtype.itemsize
    if expected > limit:
        raise ImageError(
            f"a tensor of shape {shape} and type {dtype} has {expected:,} bytes, over the limit "
            f"of {limit:,}",
            field=field.key,
            remedy="The record is damaged, or raise the limit (MAX_TENSOR_BYTES)",
        )
    if field.encoding == "zlib":
        data = _inflate(data, limit if open_ended else expected, field)
    if open_ended:
        whole = (bool(expected) and len(data) % expected == 0) or (not expected and not data)
    else:
        whole = len(data) == expected
    if not whole:
        raise ImageError(
            f"an encoded tensor has {len(data):,} bytes, which do not fit shape {shape} of {dtype}",
            field=field.key,
            remedy=_DAMAGED,
        )
    sizes = [-1 if size is None else size for size in shape]
    if open_ended and not expected:
        sizes = [0 if size == -1 else size for size in sizes]
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(sizes)


def _inflate(data: bytes, limit: int, field: Field) -> bytes:
    """Decompress, to at most `limit` bytes."""
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ImageError(
            f"a zlib-encoded tensor cannot be decompressed: {error}",
            field=field.key,
            remedy=_DAMAGED,
        ) from None
    if len(out) > limit:
        raise ImageError(
            f"a zlib-encoded tensor expands to more than {limit:,} bytes",
            field=field.key,
            remedy="The record is damaged or malicious; quarantine the episode "
            "(`headrace verify --quarantine`)",
        )
    if not stream.eof:
        raise ImageError(
            "a zlib-encoded tensor is truncated",
            field=field.key,
            remedy=_DAMAGED,
        )
    return out
