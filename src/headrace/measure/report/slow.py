"""Where batch time goes: by dominant dataset, at switches between them, in the slowest. Pure.

The dominant dataset of a batch is the one with most samples in it. Only measured batches count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.measure.columns import Batches

#: Most datasets with a row of their own.
_ROWS = 12
_SLOWEST = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Times of some batches; None where there are none."""

    name: str  #: the dataset, or what else the batches have in common
    batches: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None


@dataclass(frozen=True, slots=True)
class SwitchStay:
    """Batches whose dominant dataset differs from that of the batch before, against the others."""

    switch: Group
    stay: Group

    @property
    def ratio(self) -> float | None:
        """Mean time at a switch over that without; None where one of them is not known."""
        switch, stay = self.switch.mean_s, self.stay.mean_s
        return switch / stay if switch is not None and stay else None


@dataclass(frozen=True, slots=True)
class SlowBatch:
    """One batch; None: not known."""

    idx: int
    t_s: float  #: seconds from the first request until it was received
    dt_s: float
    fetch_s: float | None
    dominant: str | None
    gap: int | None  #: batches since its dominant dataset was last dominant; None: never


def clumping(batches: Batches) -> float | None:
    """How much more the mixtures of batches differ than those of a global shuffle, which has 1.

    The mean over the batches of the squared deviations of their counts, each over what independent
    draws would give. None where there is nothing to compare.
    """
    counts = batches.measured().counts
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if len(counts) < 2 or counts.shape[1] < 2:
        return None
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0) / counts.sum())
    squares = ((counts - expected) ** 2 / expected).sum(axis=1)
    return float(squares.mean() / (counts.shape[1] - 1))


def by_dominant(batches: Batches, most: int = _ROWS) -> list[Group]:
    """Batch times by dominant dataset, slowest mean first; the rest added up past a limit."""
    keep = ~batches.warmup & np.isfinite(batches.dt_s) & (batches.dominant != "")
    times = batches.dt_s[keep]
    numbers: dict[str, int] = {}
    group = np.array([numbers.setdefault(n, len(numbers)) for n in batches.dominant[keep]], int)
    names = list(numbers)
    # Percentiles are for the rows shown: damaged records may name a hundred thousand datasets.
    means = np.bincount(group, times, len(names)) / np.bincount(group, minlength=len(names))
    order = np.argsort(-means, kind="stable")
    shown = order if len(order) <= most + 1 else order[:most]
    found = [_group(names[number], times[group == number]) for number in shown]
    if left := len(order) - len(shown):
        found.append(_group(f"other ({left:,})", times[~np.isin(group, shown)]))
    return found


def switch_stay(batches: Batches) -> SwitchStay:
    """Batch times where the dominant dataset changed, and where it stayed."""
    measured = batches.measured()
    switched, stayed = switches(measured)
    return SwitchStay(
        _group("switch", measured.dt_s[switched]), _group("stay", measured.dt_s[stayed])
    )


def switches(batches: Batches) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which batches have a different dominant dataset from the one before, and which the same.

    Neither, where one of the two does not name it or a record between them is lost.
    """
    switched = np.zeros(len(batches), np.bool_)
    stayed = switched.copy()
    before, now = batches.dominant[:-1], batches.dominant[1:]
    known = (before != "") & (now != "") & (np.diff(batches.idx) == 1)
    switched[1:] = known & (before != now)
    stayed[1:] = known & (before == now)
    return switched, stayed


def slowest(batches: Batches, most: int = _SLOWEST) -> list[SlowBatch]:
    """The measured batches that took longest, slowest first."""
    places = np.flatnonzero(~batches.warmup & np.isfinite(batches.dt_s))
    places = places[np.argsort(-batches.dt_s[places], kind="stable")][:most]
    return [_slow(batches, place) for place in places.tolist()]


def _slow(batches: Batches, place: int) -> SlowBatch:
    name, fetch = str(batches.dominant[place]), float(batches.fetch_s[place])
    # The warm-up counts here: a dataset that was dominant in it has been read before.
    earlier = np.flatnonzero(batches.dominant[:place] == name)
    return SlowBatch(
        idx=int(batches.idx[place]),
        t_s=float(batches.t_s[place]),
        dt_s=float(batches.dt_s[place]),
        fetch_s=fetch if np.isfinite(fetch) else None,
        dominant=name or None,
        gap=int(batches.idx[place] - batches.idx[earlier[-1]]) if name and len(earlier) else None,
    )


def _group(name: str, times: NDArray[np.float64] | Sequence[float]) -> Group:
    known = np.asarray(times, np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return Group(name, 0, None, None, None)
    p50, p90 = np.percentile(known, (50, 90)).tolist()
    return Group(name, len(known), float(known.mean()), p50, p90)
