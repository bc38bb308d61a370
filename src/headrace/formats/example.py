"""A walk over the wire format of a `tf.train.Example` that locates values without reading them.

An Example is a map from names to lists, all length-prefixed::

    Example  { 1: Features { 1: map entry { 1: name, 2: Feature { 1|2|3: list } } } }
    BytesList { 1: bytes, 1: bytes, ... }     FloatList { 1: packed }     Int64List { 1: packed }

so skipping from prefix to prefix gives the place of every list, and in a list of bytes the place of
every element, without touching the values. No protobuf library gives offsets: hence this module.

The walk never reads outside [start, stop) and raises `RecordError` on anything unexpected: a byte
range that it returns is one that TensorFlow would read. It requires the form that every writer
emits (numbers packed, varints of minimal length) and rejects fields that an Example does not have,
although protobuf would skip them: in practice those are flipped bits.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, Protocol

from headrace.errors import RecordError

EMPTY, BYTES, FLOATS, INTS = 0, 1, 2, 3
_KIND_NAMES = {EMPTY: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "integers"}
_FIRST, _SECOND = 0x0A, 0x12  # tags of length-delimited fields 1 and 2
_LIST_TAGS = {0x0A: BYTES, 0x12: FLOATS, 0x1A: INTS}
_MAX_LENGTH = 1 << 31  # protobuf's own limit on a message
_REMEDY = "The record is damaged; `headrace verify` checks its checksum"


class Readable(Protocol):
    """Bytes that can be indexed and sliced: bytes, a memory map, a memory view."""

    def __getitem__(self, index: Any, /) -> Any: ...


class ListPlace(NamedTuple):
    """The place of a feature's list."""

    kind: int  #: EMPTY, BYTES, FLOATS or INTS
    start: int  #: first byte of the list message
    stop: int  #: one past its last byte

    @property
    def kind_name(self) -> str:
        """The kind as a word, for messages."""
        return _KIND_NAMES[self.kind]


def _fail(problem: str, at: int) -> RecordError:
    return RecordError(f"not a tf.train.Example: {problem}", offset=at, remedy=_REMEDY)


def _unknown(tag: int, at: int) -> RecordError:
    return _fail(f"unexpected field with tag {tag}", at)


def _message(buffer: Readable, at: int, stop: int) -> tuple[int, int]:
    """First and one past the last byte of a length-delimited value whose length is at `at`."""
    size = shift = 0
    position = at
    while True:
        if position >= stop or shift > 35:
            raise _fail("a length does not end", at)
        byte = buffer[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if byte == 0 and shift:
        raise _fail("a varint is longer than needed", at)
    end = position + size
    if end > stop:
        raise _fail(f"a length of {size:,} points past the end of its message", at)
    return position, end


def walk(buffer: Readable, start: int, stop: int) -> dict[str, ListPlace]:
    """The place of every feature's list in the Example at [start, stop)."""
    if stop - start >= _MAX_LENGTH:
        raise _fail(f"{stop - start:,} bytes exceed the limit of a protobuf message", start)
    places: dict[str, ListPlace] = {}
    position = start
    while position < stop:
        if buffer[position] != _FIRST:  # Example.features
            raise _unknown(buffer[position], position)
        at, position = _message(buffer, position + 1, stop)
        while at < position:
            if buffer[at] != _FIRST:  # Features.feature
                raise _unknown(buffer[at], at)
            first, at = _message(buffer, at + 1, position)
            name, place = _entry(buffer, first, at)
            places[name] = place
    return places


def _entry(buffer: Readable, position: int, stop: int) -> tuple[str, ListPlace]:
    """Name and list of one map entry."""
    name = ""
    place = ListPlace(EMPTY, stop, stop)
    while position < stop:
        at, tag = position, buffer[position]
        start, position = _message(buffer, position + 1, stop)
        if tag == _FIRST:
            try:
                name = bytes(buffer[start:position]).decode("utf-8")
            except UnicodeDecodeError:
                raise _fail("a feature's name is not UTF-8", at) from None
        elif tag == _SECOND:
            place = _feature(buffer, start, position)
        else:
            raise _unknown(tag, at)
    return name, place


def _feature(buffer: Readable, position: int, stop: int) -> ListPlace:
    """The list inside a Feature message."""
    place = ListPlace(EMPTY, stop, stop)
    while position < stop:
        at = position
        kind = _LIST_TAGS.get(buffer[position])
        if kind is None:
            raise _unknown(buffer[position], at)
        if place.kind:
            raise _fail("a feature holds two lists", at)
        start, position = _message(buffer, position + 1, stop)
        place = ListPlace(kind, start, position)
    return place


def packed_place(buffer: Readable, place: ListPlace) -> tuple[int, int]:
    """First and one past the last byte of the packed numbers of a list of floats or integers."""
    kind, start, stop = place
    if start == stop:
        return stop, stop
    if buffer[start] != _FIRST:
        raise _fail("numbers are not packed", start)
    first, last = _message(buffer, start + 1, stop)
    if last != stop:
        raise _fail("a list of numbers is split", last)
    if kind == FLOATS and (last - first) % 4:
        raise _fail(f"a list of floats has {last - first} bytes, not a multiple of 4", first)
    return first, last


def blob_ends(buffer: Readable, start: int, stop: int) -> array[int]:
    """Where each element of the list of bytes at [start, stop) ends, relative to `start`.

    Elements are back to back, each after a tag byte and the varint of its length, so the ends alone
    give every element's place (`blob_place`). This is the hot loop of indexing.
    """
    ends = array("I")
    append = ends.append
    position = start
    while position < stop:
        at = position
        if buffer[position] != 0x0A:
            raise _fail("a list of bytes holds something else", at)
        position += 1
        if position >= stop:
            raise _fail("a list of bytes ends inside an element's length", at)
        byte = buffer[position]
        position += 1
        size = byte & 0x7F
        shift = 7
        while byte >= 0x80:
            if position >= stop or shift > 28:
                raise _fail("an element's length does not end", at)
            byte = buffer[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte == 0:
                raise _fail("a varint is longer than needed", at)
        position += size
        if position > stop:
            raise _fail(f"an element of {size:,} bytes points past the end of its list", at)
        append(position - start)
    return ends


def blob_place(previous_end: int, end: int) -> tuple[int, int]:
    """Offset and length of the element between two neighbouring ends of `blob_ends`.

    The gap holds a tag byte, the varint of the length and the bytes. Minimal varints make the
    length unique: it is the gap minus one minus the varint's width.

    >>> blob_place(0, 2 + 127), blob_place(0, 3 + 128)
    ((2, 127), (3, 128))
    """
    gap = end - previous_end
    width = 1 if gap <= 129 else 2 if gap <= 16386 else 3 if gap <= 2097155 else 4
    if gap > 268435460:
        width = 5
    length = gap - 1 - width
    return end - length, length
