"""Values that cross rooms: frozen, slotted, without behaviour worth testing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ByteRange"]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file."""

    path: str  #: the file
    offset: int  #: first byte
    length: int  #: how many
    stamp: tuple[int, int] | None = None  #: size and mtime_ns the file must have, if that is known
