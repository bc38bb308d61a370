"""The 267 tokens, the sizes that go with them, and the code of round-trip times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

START = 0  #: a measurement begins; also what sequences are padded with
SRC4, SRC6 = 1, 2  #: the source's 4 or 16 bytes follow
DST4, DST6 = 3, 4  #: the destination's
ABSOLUTE = 5  #: 8 bytes of Unix seconds follow
DELTA1, DELTA4 = 6, 7  #: 1 or 4 bytes of seconds since the timed measurement before
RTT = 8  #: 2 bytes of round-trip time follow (`encode_rtt`)
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

# -- round-trip times ------------------------------------------------------------------------------

# Two bytes: 5 bits of exponent, 11 of mantissa, in microseconds. Microseconds are halved until they
# are below 2048; the halvings are the exponent, what is left, rounded down, the mantissa. So times
# from 1.024 ms on lose less than 0.1% (1 part in 1024), shorter ones less than a microsecond. The
# longest, 2047 * 2^31 us, is 50 days. A mantissa is never 0, so the code 0 means a failed
# measurement.
FAILED_CODE = 0
_MANTISSA_BITS = 11
_LARGEST = (1 << _MANTISSA_BITS) - 1
_MOST_HALVINGS = 31


def encode_rtt(milliseconds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """The codes of round-trip times; those that are negative or not finite have failed.

    >>> encode_rtt(np.array([0.5, 20.0, -1.0])).tolist()
    [500, 9442, 0]
    """
    answered = (milliseconds >= 0) & (milliseconds < np.inf)  # false for NaN
    with np.errstate(over="ignore"):
        # A number near the end of the range is still a time, if one beyond the largest code.
        micros = np.maximum(1.0, np.where(answered, milliseconds, 1.0) * 1000)
    micros = np.minimum(micros, np.finfo(np.float64).max)
    _, bits = np.frexp(micros)  # micros < 2^bits
    halvings = np.clip(bits - _MANTISSA_BITS, 0, _MOST_HALVINGS)
    mantissa = np.minimum(np.ldexp(micros, -halvings), _LARGEST).astype(np.uint16)
    code = halvings.astype(np.uint16) << np.uint16(_MANTISSA_BITS) | mantissa
    return np.where(answered, code, np.uint16(FAILED_CODE))


def decode_rtt(code: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Milliseconds; NaN where the measurement failed.

    >>> decode_rtt(np.array([500, 9442, 0])).tolist()
    [0.5, 20.0, nan]
    """
    code = np.asarray(code, np.int64)
    millis = np.ldexp((code & _LARGEST).astype(np.float64), code >> _MANTISSA_BITS) / 1000
    return np.where(code == FAILED_CODE, np.nan, millis)
