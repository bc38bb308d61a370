"""Where each token of a measurement comes from: a table for every shape that one can have.

A measurement's raw tokens lie in one row: the special ones, then the bytes of source, destination,
round-trip time and time. A template lists the places of its tokens in that row, in order. So a
measurement is made by looking up its template and gathering.
"""

from __future__ import annotations

import numpy as np

from headrace.recipes.network.shuffles import ORDERS, ORDERS3, ORDERS4
from headrace.recipes.network.vocabulary import (
    ABSOLUTE,
    BYTE,
    DELTA1,
    DELTA4,
    DST4,
    DST6,
    FAILED,
    RTT,
    SRC4,
    SRC6,
    START,
)

__all__ = ["CASES", "LONGEST", "PLACES", "SHAPES", "SIZES", "TIME", "WIDTH"]

SRC, DST, CODE = BYTE, BYTE + 16, BYTE + 32  #: first places of the bytes
TIME = BYTE + 34  #: eight bytes, big-endian; short deltas are the last ones
WIDTH = TIME + 8  #: places of a row

SHAPES = 4 * ORDERS  #: values of the prepared column `shape`
LONGEST = 1 + 17 + 17 + 3 + 9  #: tokens

_TIMES: tuple[list[int], ...] = (
    [],
    [ABSOLUTE, *range(TIME, TIME + 8)],
    [DELTA1, TIME + 7],
    [DELTA4, *range(TIME + 4, TIME + 8)],
)


def _template(six: bool, failed: bool, time: list[int], order: tuple[int, ...]) -> list[int]:
    size = 16 if six else 4
    blocks = [
        [SRC6 if six else SRC4, *range(SRC, SRC + size)],
        [DST6 if six else DST4, *range(DST, DST + size)],
        [FAILED] if failed else [RTT, CODE, CODE + 1],
        time,
    ]
    return [START, *(place for block in order for place in blocks[block])]


def _templates() -> tuple[list[list[int]], dict[tuple[int, bool, bool, int], int]]:
    """All templates, and the number of each by kind of time, version, failure and order."""
    templates: list[list[int]] = []
    numbers = {}
    for six in (False, True):
        for failed in (False, True):
            for kind, time in enumerate(_TIMES):
                for number, order in enumerate(ORDERS4 if time else ORDERS3):
                    numbers[kind, six, failed, number] = len(templates)
                    templates.append(_template(six, failed, time, order))
    return templates, numbers


def _cases(numbers: dict[tuple[int, bool, bool, int], int]) -> list[int]:
    """The template of every kind of time and shape."""
    cases = []
    for kind in range(len(_TIMES)):
        for shape in range(SHAPES):
            code, six, failed = shape // 4, bool(shape & 2), bool(shape & 1)
            four, three = divmod(code, len(ORDERS3))
            cases.append(numbers[kind, six, failed, four if kind else three])
    return cases


_all, _numbers = _templates()
#: Template by kind of time (none, absolute, one byte, four bytes) * SHAPES + shape.
CASES = np.array(_cases(_numbers), np.int32)
#: Tokens of each template.
SIZES = np.array([len(template) for template in _all], np.int64)
#: Places of the tokens of each template, one after the other in rows of LONGEST.
PLACES = np.array([template + [0] * (LONGEST - len(template)) for template in _all], np.int64)
