"""A column of addresses as bytes. A file has thousands of them in millions of rows: each is parsed
once."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["WIDTH", "Addresses", "parse_address", "read_addresses"]

WIDTH = 16  #: bytes kept for an address; the 4 of IPv4 come first
_NONE, _BAD = 0, 1  # families beside 4 and 6


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of some rows."""

    texts: Any  #: as the file has them, as an Arrow array of binary; nothing where there is none
    bytes: npt.NDArray[np.uint8]  #: [n, 16], zeros where there is none
    family: npt.NDArray[np.uint8]  #: 4, 6, 0 where there is none, 1 where the text is no address

    def disagree(self, version: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Rows whose text is no address of that version; having none agrees with both."""
        wrong: npt.NDArray[np.bool_] = (self.family != _NONE) & (self.family != version)
        return wrong


def read_addresses(column: Any) -> Addresses:
    """Parse an Arrow array of strings, plain or dictionary-encoded."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column.cast(pa.large_binary()))
    known = column.dictionary.cast(pa.large_binary())
    parsed = [parse_address(text or b"") for text in known.to_pylist()]
    parsed.append(parse_address(b""))  # for rows without one
    families = np.array([family for family, _ in parsed], np.uint8)
    packed = np.frombuffer(b"".join(data for _, data in parsed), np.uint8).reshape(-1, WIDTH)
    which = pc.fill_null(column.indices.cast(pa.int64()), len(known)).to_numpy(zero_copy_only=False)
    texts = pc.fill_null(pc.take(known, column.indices), b"")
    return Addresses(texts, packed[which], families[which])


@lru_cache(maxsize=1 << 16)
def parse_address(text: bytes) -> tuple[int, bytes]:
    """Family and 16 bytes of an address.

    >>> parse_address(b"10.0.0.1")[1][:4]
    b'\\n\\x00\\x00\\x01'
    """
    if not text:
        return _NONE, bytes(WIDTH)
    try:
        address = text.decode()
        if b":" not in text:
            return 4, socket.inet_pton(socket.AF_INET, address).ljust(WIDTH, b"\0")
        # Python's own parser knows zones (fe80::1%eth0) too, but takes ten times as long.
        if b"%" in text:
            return 6, ipaddress.IPv6Address(address).packed
        return 6, socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return _BAD, bytes(WIDTH)
