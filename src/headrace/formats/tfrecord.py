"""TFRecord framing: the place of each record, and its checksums.

A file is a chain of records::

    uint64 length | uint32 masked CRC-32C of the length | payload | uint32 masked CRC-32C of payload

so the place of every record follows from the 12-byte headers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import crc32c

from headrace.errors import RecordError

HEADER = 12  #: bytes before a payload
FOOTER = 4  #: bytes after a payload
_MASK_DELTA = 0xA282EAD8
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x78\x01": "zlib", b"\x78\x9c": "zlib", b"\x78\xda": "zlib"}
_DAMAGED = (
    "The file is damaged or was not copied completely: fetch it again, or continue without the "
    "episodes that cannot be read (`headrace index --quarantine`)"
)

Buffer = bytes | bytearray | memoryview


def masked_crc(data: Buffer) -> int:
    """The CRC-32C of `data`, masked as TFRecord stores it."""
    crc: int = crc32c.crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def record_places(read: Callable[[int, int], bytes], size: int) -> Iterator[tuple[int, int]]:
    """Yield (payload offset, payload length) of every record of a file of `size` bytes.

    `read(offset, length)` is called for the 12-byte headers only. A header with a wrong checksum,
    or a record that points past the end, raises: nothing after it can be found.
    """
    position = 0
    while position < size:
        if position + HEADER > size:
            raise RecordError(
                f"the file ends inside a record header: {size - position} of {HEADER} bytes",
                offset=position,
                remedy=_DAMAGED,
            )
        header = read(position, HEADER)
        length, length_crc = struct.unpack("<QI", header)
        if masked_crc(header[:8]) != length_crc:
            if position == 0 and header[:2] in _COMPRESSED:
                raise RecordError(
                    f"the TFRecord file is {_COMPRESSED[header[:2]]}-compressed, so no frame in it "
                    "can be reached by its byte range",
                    offset=0,
                    remedy="Write the dataset uncompressed, as TFDS does by default "
                    "(for gzip: `gunzip` the shards and keep their names)",
                )
            raise RecordError(
                "the checksum of a record's length is wrong", offset=position, remedy=_DAMAGED
            )
        if position + HEADER + length + FOOTER > size:
            raise RecordError(
                f"a record of {length:,} bytes points past the end of the file ({size:,} bytes)",
                offset=position,
                remedy=_DAMAGED,
            )
        yield position + HEADER, length
        position += HEADER + length + FOOTER


def check_payload(payload: Buffer, footer: bytes) -> None:
    """Raise unless the checksum after a payload is right."""
    if masked_crc(payload) != int.from_bytes(footer, "little"):
        raise RecordError("the checksum of the record is wrong", remedy=_DAMAGED)
