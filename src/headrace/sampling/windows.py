"""Windows on an episode: which frames after t, how far, and how many t an episode has."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.hashed import Ints

__all__ = ["WindowMode", "frame_offsets", "steps_from_seconds", "valid_starts"]

WindowMode: TypeAlias = Literal["endpoints", "all", "stride", "fixed_n"]


def frame_offsets(
    mode: WindowMode, k: int, stride: int | None = None, n: int | None = None
) -> tuple[int, ...]:
    """The frames of a window of k steps, relative to its start.

    `endpoints` 0 and k · `all` 0 to k · `stride` every so many, and always k · `fixed_n` n frames
    evenly from 0 to k, rounded half to even; frames repeat where n exceeds k + 1.

    >>> frame_offsets("endpoints", 5), frame_offsets("stride", 5, stride=2)
    ((0, 5), (0, 2, 4, 5))
    """
    if mode not in get_args(WindowMode):
        raise UsageError(
            f"window mode is {mode!r}", remedy=f"Give one of {', '.join(get_args(WindowMode))}."
        )
    _check("offset k", k)
    for name, value, owner in (("stride", stride, "stride"), ("n", n, "fixed_n")):
        if mode == owner:
            _check(f"{name} of window mode {mode!r}", value)
        elif value is not None:
            raise UsageError(
                f"{name} is {value!r}, but the window mode is {mode!r}",
                remedy=f"Drop {name}, or use the window mode {owner!r}.",
            )
    if mode == "endpoints":
        return 0, k
    if mode == "fixed_n":
        return tuple(int(frame) for frame in np.rint(np.linspace(0, k, n or 1)))
    return (*range(0, k, stride or 1), k)


def steps_from_seconds(seconds: float, hz: float | None) -> int:
    """An offset in seconds as steps at a control frequency: rounded, at least 1.

    >>> steps_from_seconds(0.6, hz=5)
    3
    """
    if not isinstance(seconds, (int, float)) or not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(
            f"offset in seconds is {seconds!r}", remedy="Give a number above 0, for example 0.6."
        )
    if hz is None:
        raise UsageError(
            f"an offset of {seconds} seconds needs the control frequency, which is not known",
            remedy="Give `hz` for this source, or `offset` in steps.",
        )
    if not (math.isfinite(hz) and hz > 0):
        raise UsageError(f"hz is {hz!r}", remedy="Give steps per second, for example 10.")
    return max(1, round(seconds * hz))


def valid_starts(steps: npt.ArrayLike, k: int) -> Ints:
    """How many t have t + k inside an episode of so many steps.

    >>> valid_starts([3, 5, 9], k=5).tolist()
    [0, 0, 4]
    """
    _check("offset k", k)
    return np.maximum(np.asarray(steps, np.int64) - k, 0)


def _check(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UsageError(f"{name} is {value!r}", remedy="Give a whole number from 1 upwards.")
