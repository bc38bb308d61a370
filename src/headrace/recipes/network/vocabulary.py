"""The 267 tokens, and the sizes that go with them."""

from __future__ import annotations

__all__ = [
    "ABSOLUTE",
    "BYTE",
    "COLUMNS",
    "DELTA1",
    "DELTA4",
    "DST4",
    "DST6",
    "FAILED",
    "LENGTH",
    "ROWS",
    "RTT",
    "SPECIAL_NAMES",
    "SRC4",
    "SRC6",
    "START",
    "THROUGHPUT",
    "VOCABULARY",
]

START = 0  #: a measurement begins; also what sequences are padded with
SRC4, SRC6 = 1, 2  #: the source's 4 or 16 bytes follow
DST4, DST6 = 3, 4  #: the destination's
ABSOLUTE = 5  #: 8 bytes of Unix seconds follow
DELTA1, DELTA4 = 6, 7  #: 1 or 4 bytes of seconds since the timed measurement before
RTT = 8  #: 2 bytes of round-trip time follow (`rtt`)
THROUGHPUT = 9  #: reserved
FAILED = 10  #: no answer came
BYTE = 11  #: byte b is the token 11 + b
VOCABULARY = BYTE + 256

SPECIAL_NAMES = (
    "MeasurementStart",
    "SrcIPv4",
    "SrcIPv6",
    "DstIPv4",
    "DstIPv6",
    "TimestampAbs",
    "Delta1",
    "Delta4",
    "Rtt",
    "Throughput",
    "Failed",
)

ROWS = 64  #: measurements of a window
LENGTH = 1024  #: tokens of a sequence; a window's tokens are cut or padded to it

#: What is read of a file, whatever else it holds.
COLUMNS = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")
