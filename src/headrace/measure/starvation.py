"""When a training step counts as starved: the one rule of the report and the doctor. Pure."""

from __future__ import annotations

__all__ = ["AT_LIMIT", "NEAR_LIMIT", "STARVED", "wait_share"]

#: A step that waits no more than this share of its time is not starved. The design asks for 1% on
#: the largest machine; below 2% no change to the data would be noticed.
STARVED = 0.02
#: At this share of the decode limit the loader itself costs next to nothing (the design's target).
AT_LIMIT = 0.95
#: From here on a loader delivers about what the machine allows; below, something else holds it up.
NEAR_LIMIT = 0.8


def wait_share(wait_s: float, step_s: float) -> float:
    """The share of its time that a step waits for data; `step_s` is the rest of that time.

    >>> wait_share(0.25, 0.75), wait_share(0, 0)
    (0.25, 0.0)
    """
    total = wait_s + step_s
    return wait_s / total if total > 0 else 0.0
