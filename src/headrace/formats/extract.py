"""The values of a field for a range of steps, reading only the bytes they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecordError, UnknownFieldError
from headrace.formats.example import FLOATS, INTS, blob_ends, blob_place
from headrace.formats.features import Field
from headrace.formats.layout import BLOBS, FIXED, Part, parts_of
from headrace.formats.numbers import decode_tensor, decode_varints

__all__ = ["EpisodePlaces", "blobs", "values"]

Parts = tuple[Part, ...]
Fetch = Callable[[int, int], bytes]  #: (offset, length) relative to the record's payload


class EpisodePlaces(Protocol):
    """Where the parts of one episode stand, as an index keeps it."""

    @property
    def steps(self) -> int:
        """Number of steps."""

    def start(self, part: Part) -> int:
        """First byte of a part, relative to the payload; 0 where the episode has no values."""

    def size(self, part: Part) -> int:
        """Bytes of a part that is not made of blobs."""

    def ends(self, part: Part) -> NDArray[np.uint32]:
        """Where each blob of a part ends, relative to its start."""


def values(field: Field, places: EpisodePlaces, fetch: Fetch, start: int, stop: int) -> Any:
    """A field's values for steps [start, stop); for an episode's field, its one value.

    Numbers come as an array [steps, *shape] of the field's dtype, strings and encoded images as an
    object array of bytes, ragged fields as (nested) lists of arrays.
    """
    if field.kind == "unsupported":
        raise UnknownFieldError(
            f"{field.key!r} is of a type that headrace cannot read ({field.dtype})",
            remedy="Other fields of the dataset are not affected",
        )
    parts = parts_of(field)
    try:
        if field.ragged:
            return _ragged(field, parts, places, fetch, start, stop)
        if parts[0].storage == FIXED:
            return _fixed(field, parts[0], places, fetch, start, stop)
        if parts[-1].storage == BLOBS:
            return _encoded(field, parts, places, fetch, start, stop)
        return _span(field, parts, places, fetch, start, stop)
    except RecordError as error:
        raise error.within(field=field.key) from None


def blobs(part: Part, places: EpisodePlaces, fetch: Fetch, start: int, stop: int) -> list[bytes]:
    """The blobs of steps [start, stop), in one read."""
    ends = places.ends(part)
    if len(ends) < stop:
        raise _absent(part, len(ends), places.steps)
    if start == stop:
        return []
    base = before = int(ends[start - 1]) if start else 0
    data = fetch(places.start(part) + base, int(ends[stop - 1]) - base)
    found = []
    for end in ends[start:stop].tolist():
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
        remedy="The dataset declares it but this record lacks it: choose another camera or field, "
        "or leave the episode out",
    )


def _fixed(
    field: Field, part: Part, places: EpisodePlaces, fetch: Fetch, start: int, stop: int
) -> NDArray[Any]:
    if not part.step_bytes or start == stop:
        return np.zeros((stop - start, *_sizes(field)), field.np_dtype)
    if not places.start(part):
        raise _absent(part, 0, places.steps)
    width = part.step_bytes
    data = fetch(places.start(part) + start * width, (stop - start) * width)
    numbers = np.frombuffer(data, "<f4").reshape(stop - start, *_sizes(field))
    return numbers.astype(field.np_dtype)


def _encoded(
    field: Field,
    parts: tuple[Part, ...],
    places: EpisodePlaces,
    fetch: Fetch,
    start: int,
    stop: int,
) -> Any:
    """Encoded images as they are; encoded tensors decoded."""
    raw = blobs(parts[-1], places, fetch, start, stop)
    if field.kind == "image":
        return _objects(raw, (stop - start,))
    shapes = _shapes(field, parts[0], places, fetch, places.steps)[start:stop]
    tensors = [decode_tensor(data, field, shape) for data, shape in zip(raw, shapes, strict=True)]
    if None in field.shape:
        return tensors
    return np.stack(tensors) if tensors else np.zeros((0, *_sizes(field)), field.np_dtype)


def _span(
    field: Field,
    parts: tuple[Part, ...],
    places: EpisodePlaces,
    fetch: Fetch,
    start: int,
    stop: int,
) -> Any:
    """Varints and texts, whose steps have no fixed place, and everything an episode has once."""
    if not field.per_step:
        return _episode_value(field, parts, places, fetch)
    width = field.width
    if width is None:
        raise RecordError(f"a step's {field.key!r} has no fixed number of values")
    if parts[0].list_kind == INTS and places.size(parts[0]):
        data = fetch(places.start(parts[0]), places.size(parts[0]))
        wanted = decode_varints(data, start * width, stop * width, count=places.steps * width)
        return _typed(wanted, field).reshape(stop - start, *_sizes(field))
    flat = _list(parts[0], places, fetch)
    if len(flat) != places.steps * width:
        raise _absent(parts[0], len(flat), places.steps)
    chosen = flat[start * width : stop * width].reshape(stop - start, *_sizes(field))
    return _typed(chosen, field)


def _episode_value(field: Field, parts: Parts, places: EpisodePlaces, fetch: Fetch) -> Any:
    flat = _list(parts[-1], places, fetch)
    if field.nesting == 0 and field.width is not None and field.width and not len(flat):
        raise _absent(parts[-1], 0, 1)
    sizes = [-1 if size is None else size for size in field.shape]
    if field.kind == "image":
        return flat if field.nesting else flat[0]
    if field.encoding is not None:
        shapes = _shapes(field, parts[0], places, fetch, len(flat))
        tensors = [decode_tensor(d, field, s) for d, s in zip(flat, shapes, strict=True)]
        return tensors if field.nesting else tensors[0]
    if -1 in sizes and field.nesting:
        raise RecordError(f"{field.key!r} has two unknown dimensions")
    whole = _typed(flat, field).reshape([-1, *sizes] if field.nesting else sizes)
    return whole if field.nesting or field.shape else whole[()]


def _ragged(
    field: Field,
    parts: tuple[Part, ...],
    places: EpisodePlaces,
    fetch: Fetch,
    start: int,
    stop: int,
) -> Any:
    """Nested lists, innermost an array, rebuilt from flat values and row lengths."""
    rows = field.nesting + field.per_step - 1
    value_parts = parts[rows + 1 :] if field.stores_shape else parts
    flat = _list(value_parts[0], places, fetch)
    lengths = [_list(part, places, fetch) for part in value_parts[1:]]
    level: Any
    if field.kind == "image":
        level = flat
    elif field.encoding is not None:
        shapes = _shapes(field, parts[0], places, fetch, len(flat))
        tensors = [decode_tensor(d, field, s) for d, s in zip(flat, shapes, strict=True)]
        level = _objects(tensors, (len(tensors),))
    else:
        if field.width is None or (len(flat) % field.width if field.width else len(flat)):
            raise RecordError(f"{len(flat)} flat values do not fill rows of shape {field.shape}")
        level = _typed(flat, field).reshape(-1, *_sizes(field))
    for row_lengths in reversed(lengths):
        stops = np.cumsum(row_lengths)
        total = int(stops[-1]) if len(stops) else 0
        if (row_lengths < 0).any() or total != len(level):
            raise RecordError(f"row lengths add up to {total}, not to {len(level)} values")
        firsts = stops - row_lengths
        level = [level[a:b] for a, b in zip(firsts.tolist(), stops.tolist(), strict=True)]
    if not field.per_step:
        return level
    if len(level) != places.steps:
        raise RecordError(f"{len(level)} rows for {places.steps} steps")
    return level[start:stop]


def _list(part: Part, places: EpisodePlaces, fetch: Fetch) -> NDArray[Any]:
    """All elements of a part that is a span: numbers, or an object array of bytes."""
    size = places.size(part)
    data = fetch(places.start(part), size) if size else b""
    if part.list_kind == INTS:
        return decode_varints(data)
    if part.list_kind == FLOATS:
        return np.frombuffer(data, "<f4")
    before, found = 0, []
    for end in blob_ends(data, 0, len(data)):
        offset, length = blob_place(before, end)
        found.append(data[offset : offset + length])
        before = end
    return _objects(found, (len(found),))


def _objects(items: list[Any], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """A list as an object array, whatever its elements are."""
    array = np.empty(len(items), object)
    for index, item in enumerate(items):  # a plain assignment would unpack arrays of equal shape
        array[index] = item
    return array.reshape(shape)


def _typed(flat: NDArray[Any], field: Field) -> NDArray[Any]:
    if flat.dtype == object:
        return flat
    return flat.astype(field.np_dtype)


def _shapes(
    field: Field, part: Part, places: EpisodePlaces, fetch: Fetch, count: int
) -> list[tuple[int | None, ...]]:
    """The shape of each of `count` encoded tensors: the schema's, or the one stored with it."""
    if not field.stores_shape:
        return [field.shape] * count
    flat = _list(part, places, fetch)
    if len(flat) != count * len(field.shape):
        raise RecordError(f"{len(flat)} stored sizes for {count} tensors of shape {field.shape}")
    rows = flat.reshape(count, len(field.shape)).tolist()
    for row in rows:
        for declared, stored in zip(field.shape, row, strict=True):
            if stored < 0 or (declared is not None and declared != stored):
                raise RecordError(f"stored shape {tuple(row)} does not fit {field.shape}")
    return [tuple(row) for row in rows]


def _sizes(field: Field) -> list[int]:
    return [size for size in field.shape if size is not None]
