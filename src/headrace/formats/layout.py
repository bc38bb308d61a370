"""Which parts of a record an index must know, and finding them in a record.

A field of the schema is stored under one or more names in a record (a ragged field has its flat
values and row lengths, a tensor that carries its shape has a shape and a value). Each such name is
a *part*. An index keeps, per episode and part:

- **fixed** numbers: where they start; how many bytes follows from the number of steps;
- **blobs** (images, encoded tensors): where they start, and where each step's blob ends;
- **spans** (varints, texts, ragged values): where they start and how many bytes they are.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cache

from headrace.errors import RecordError
from headrace.formats.example import (
    BYTES,
    EMPTY,
    FLOATS,
    INTS,
    Readable,
    blob_ends,
    packed_place,
    walk,
)
from headrace.formats.features import Field, Schema

__all__ = ["BLOBS", "FIXED", "SPAN", "Part", "RecordIndex", "index_record", "parts_of", "plan"]

FIXED, BLOBS, SPAN = "fixed", "blobs", "span"
ABSENT = 0  #: start of a part without values in a record; no list can start at byte 0


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
    """Where everything stands in one record, relative to its payload's first byte."""

    steps: int
    starts: list[int]  #: one a part, ABSENT where the record has no values of it
    sizes: list[int]  #: one a part
    ends: list[array[int] | None]  #: one a part, None unless BLOBS


@cache
def parts_of(field: Field) -> tuple[Part, ...]:
    """The parts that a field is stored as."""
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


def index_record(buffer: Readable, start: int, stop: int, parts: list[Part]) -> RecordIndex:
    """Find every part in the record whose payload stands at [start, stop)."""
    found = walk(buffer, start, stop)
    if parts and not any(part.key in found for part in parts):
        raise RecordError(
            "the record has none of the fields that features.json declares",
            offset=start,
            remedy="features.json and shards are not of the same dataset, or the record is damaged",
        )
    starts: list[int] = []
    sizes: list[int] = []
    ends: list[array[int] | None] = []
    for part in parts:
        place = found.get(part.key)
        part_ends: array[int] | None = None
        if place is None or place.kind == EMPTY or place.start == place.stop:
            first = last = start + ABSENT  # TFDS writes an empty list, or none, for no values
        elif place.kind != part.list_kind:
            raise RecordError(
                f"the record stores {part.key!r} as {place.kind_name}, which its features.json "
                "does not say",
                field=part.key,
                offset=place.start,
                remedy="features.json and shards are not of the same dataset version",
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
    steps = _count_steps(buffer, start, parts, starts, sizes, ends)
    _check_steps(start, parts, starts, sizes, ends, steps)
    return RecordIndex(steps, starts, sizes, ends)


def _count_steps(
    buffer: Readable,
    start: int,
    parts: list[Part],
    starts: list[int],
    sizes: list[int],
    ends: list[array[int] | None],
) -> int:
    """The number of steps, from the first part that tells it."""
    for part, part_ends in zip(parts, ends, strict=True):
        if part.storage == BLOBS and part_ends:
            return len(part_ends)
    for part, size in zip(parts, sizes, strict=True):
        if part.storage == FIXED and size and part.step_bytes:
            return size // part.step_bytes
    for part, first, size in zip(parts, starts, sizes, strict=True):
        if not (part.step_items and size):
            continue
        at = start + first
        if part.list_kind == BYTES:
            return len(blob_ends(buffer, at, at + size)) // part.step_items
        numbers = sum(byte < 0x80 for byte in bytes(buffer[at : at + size]))
        return numbers // part.step_items
    for part, first, size in zip(parts, starts, sizes, strict=True):
        if part.key.endswith("/ragged_row_lengths_0") and size:
            at = start + first
            return sum(byte < 0x80 for byte in bytes(buffer[at : at + size]))
    return 0


def _check_steps(
    start: int,
    parts: list[Part],
    starts: list[int],
    sizes: list[int],
    ends: list[array[int] | None],
    steps: int,
) -> None:
    """Every part that tells the number of steps tells the same one, or is empty."""
    for part, first, size, part_ends in zip(parts, starts, sizes, ends, strict=True):
        if part.storage == FIXED and size not in (0, steps * part.step_bytes):
            has, unit = size // 4, "numbers"
            wants = steps * part.step_bytes // 4
        elif part_ends and len(part_ends) != steps:
            has, unit = len(part_ends), "blobs"
            wants = steps
        else:
            continue
        raise RecordError(
            f"{part.key!r} has {has:,} {unit} where {steps:,} steps need {wants:,}",
            field=part.key,
            offset=start + first,
            remedy="The record is damaged or features.json is of another version",
        )
