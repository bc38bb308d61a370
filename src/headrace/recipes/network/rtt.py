"""Round-trip times as two bytes: 5 bits of exponent, 11 of mantissa, in microseconds.

Microseconds are halved until they are below 2048; the halvings are the exponent, what is left,
rounded down, the mantissa. So times from 1.024 ms on lose less than 0.1% (1 part in 1024), shorter
ones less than a microsecond. The longest, 2047 * 2^31 us, is 50 days.

A mantissa is never 0, so the code 0 is free to say that a measurement failed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FAILED_CODE", "decode_rtt", "encode_rtt"]

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
