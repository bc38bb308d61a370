"""Numbers and texts that go with a window: where they stand, for many samples at once.

The fields that nearly every dataset uses have a place that can be computed: floats without
encoding (`start + 4 * width * t`), and texts, whose steps are usually all equal. Others are read
through the catalog, which is the plain twin of everything here.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog
from headrace.formats.example import blob_ends, blob_place
from headrace.formats.extract import FIXED, decode_varints, parts_of
from headrace.formats.features import Field
from headrace.sampling.bijection import Ints

__all__ = ["NumberField", "RobotNames", "TextField"]


@dataclass(frozen=True)
class NumberField:
    """A float tensor of a step, of which the first `dim` numbers are used."""

    catalog: Catalog
    field: Field
    dim: int
    step_bytes: int = 0  #: bytes a step has in the file; 0 if that is not a fixed place

    @staticmethod
    def of(catalog: Catalog, field: Field, dim: int) -> NumberField:
        """The field with what follows from how it is stored."""
        part = parts_of(field)[0]
        return NumberField(catalog, field, dim, part.step_bytes if part.storage == FIXED else 0)

    def offsets(self, episodes: Ints, steps: Ints) -> Ints:
        """Where each step's numbers stand in its file; -1: ask the catalog."""
        if not self.step_bytes:
            return np.full(len(episodes), -1)
        return self.catalog.fixed_places(self.field, episodes, steps)

    def read(self, fd: int, offset: int, count: int, episode: int, t: int) -> NDArray[np.float32]:
        """[count, dim] from step t on."""
        if offset < 0:
            values = self.catalog.read(episode, self.field.key, t, t + count)
            flat = np.asarray(values, np.float32).reshape(count, -1)
        else:
            size = count * self.step_bytes
            data = os.pread(fd, size, offset)
            if len(data) < size:  # a short read: the catalog asks again and knows what to say
                return self.read(fd, -1, count, episode, t)
            flat = np.frombuffer(data, "<f4").reshape(count, -1)
        return flat[:, : self.dim]


@dataclass(frozen=True)
class TextField:
    """An instruction: text, or Unicode code points."""

    catalog: Catalog
    field: Field

    def spans(self, episodes: Ints) -> tuple[Ints, Ints]:
        """Where each episode's texts stand in its file, and how many bytes they are."""
        return self.catalog.span_places(self.field, episodes)

    def read(self, fd: int, offset: int, size: int, episode: int, steps: int, t: int) -> str:
        """The text at step t."""
        if not size:
            return self.catalog.instruction(episode, t, self.field.key)
        width = self.field.width or 0
        text: str | bytes | None
        if self.field.is_string:
            text = _text_at(os.pread(fd, size, offset), steps, t, size)
        elif width and size == steps * width:  # every code point takes a byte
            text = os.pread(fd, width, offset + t * width).replace(b"\0", b"")
        else:
            text = _codes_of_all(os.pread(fd, size, offset), steps, width, size)
        if text is None:
            return self.catalog.instruction(episode, t, self.field.key)
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _codes_of_all(data: bytes, steps: int, width: int, size: int) -> str | None:
    """The text that all steps share, as code points of several bytes; None if they do not."""
    unit = data[: size // steps]
    if len(data) < size or unit * steps != data:
        return None
    codes = decode_varints(unit)
    if len(codes) != width or codes.min() < 0 or codes.max() >= 0xD800:  # negative, or no text
        return None
    return codes[codes > 0].astype("<u4").tobytes().decode("utf-32-le")


def _text_at(data: bytes, steps: int, t: int, size: int) -> bytes | None:
    """The t-th of `steps` texts; None if there are not so many."""
    if len(data) < size:
        return None
    if size % steps == 0:  # most episodes have one instruction, repeated
        unit = data[: size // steps]
        offset, length = blob_place(0, len(unit))
        if unit * steps == data and _length_prefix(unit) == length:
            return unit[offset:]
    ends = blob_ends(data, 0, size)
    if len(ends) != steps:
        return None
    offset, length = blob_place(ends[t - 1] if t else 0, ends[t])
    return data[offset : offset + length]


def _length_prefix(unit: bytes) -> int:
    """The length that stands at the start of an element; -1 if it takes more than two bytes."""
    if len(unit) < 2 or unit[0] != 0x0A:
        return -1
    if unit[1] < 0x80:
        return unit[1]
    if len(unit) > 2 and unit[2] < 0x80:
        return (unit[1] & 0x7F) | unit[2] << 7
    return -1


class RobotNames:
    """The robot that an episode names; there are few episodes next to samples, so it is kept."""

    def __init__(self, catalog: Catalog, key: str) -> None:
        self._catalog, self._key = catalog, key
        self._known: dict[int, str] = {}

    def __getitem__(self, episode: int) -> str:
        name = self._known.get(episode)
        if name is None:
            value = bytes(self._catalog.read(episode, self._key))
            name = self._known[episode] = sys.intern(value.decode("utf-8", "replace"))
        return name
