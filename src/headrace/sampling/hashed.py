"""A keyed hash of integers: the only source of chance in headrace.

The mixing step is the finaliser of SplitMix64 (Steele, Lea, Flood 2014). It passes the usual
statistical batteries, needs five operations that numpy vectorises, and gives the same numbers on
every machine and numpy version, which `numpy.random` does not promise. It is no cryptography.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError

__all__ = ["GOLDEN", "Ints", "Words", "check_seed", "hash_ints", "name_key", "to_range", "words"]

Words: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_30, _27, _31, _32 = (np.uint64(bits) for bits in (30, 27, 31, 32))
_WORD = 1 << 64


def hash_ints(*parts: int | npt.NDArray[Any]) -> Words:
    """One 64-bit word for each combination of integers; arrays are broadcast, order matters.

    >>> hash_ints(0, 1) == hash_ints(1, 0)
    array([False])
    """
    state = _mix(words(parts[0]) + GOLDEN)
    for part in parts[1:]:
        state = _mix((state ^ words(part)) + GOLDEN)
    return state


def to_range(word: Words, size: int | npt.NDArray[Any]) -> Ints:
    """Map hashes to [0, size): the upper half of the 128-bit product, so biased by size / 2^64.

    >>> to_range(hash_ints(np.arange(5)), 10).tolist()
    [8, 5, 5, 1, 4]
    """
    n = words(size)
    high, low = word >> _32, word & _LOW
    n_high, n_low = n >> _32, n & _LOW
    middle = high * n_low + (low * n_low >> _32)
    carry = (low * n_high + (middle & _LOW)) >> _32
    upper: Words = high * n_high + (middle >> _32) + carry
    return upper.astype(np.int64)


def words(value: int | npt.NDArray[Any]) -> Words:
    """Integers modulo 2^64, with at least one dimension: numpy warns where scalars overflow."""
    if isinstance(value, np.ndarray):
        return np.atleast_1d(value).astype(np.uint64, copy=False)
    return np.array([value % _WORD], np.uint64)


def name_key(name: str) -> int:
    """A key that depends on nothing but a name, so that sources do not depend on their position.

    >>> hex(name_key("bridge"))
    '0x26c4bc17a58c0fee'
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def check_seed(seed: int) -> int:
    """The seed itself, if it is one."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < _WORD:
        raise UsageError(
            f"seed is {seed!r}, not an integer from 0 to 2^64 - 1", remedy="Give, say, seed=0."
        )
    return int(seed)


def _mix(word: Words) -> Words:
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)
