"""The records of a run as columns of numbers, and the figures that follow from them. Pure.

Records come from disks and other people's programs: what is not a usable number is NaN.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

PERCENTILES = (50, 90, 99)
#: Beyond this a time, rate or size is damage, and would only spoil the axes.
_LARGEST = 1e15
#: Most dataset names kept apart; damaged or hostile records cannot make the table larger.
_NAMES = 512
#: Records turned into columns at a time: a run of a million batches is not held as a million dicts.
_CHUNK = 4096
_PARTS = 5  # of the measured time, for the spread within a run


def finite(value: Any) -> float | None:
    """A number as a float; None for whatever is not a usable one.

    >>> finite(3), finite("3"), finite(float("nan")), finite(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= _LARGEST else None
    return value if math.isfinite(value) and abs(value) <= _LARGEST else None


def finite_column(values: Sequence[Any]) -> Floats:
    """`finite` of many values, NaN in place of None; millions of counts take a fast path."""
    if set(map(type, values)) <= {int, float}:
        try:
            column = np.array(values, dtype=np.float64)
        except OverflowError:  # an integer beyond what a float can hold
            pass
        else:
            column[~(np.abs(column) <= _LARGEST)] = np.nan
            return column
    return np.array([math.nan if (n := finite(v)) is None else n for v in values], dtype=np.float64)


def percentiles(seconds: Floats) -> dict[str, float | None]:
    """`p50_s`, `p90_s` and `p99_s` of times; None where there are none."""
    known = seconds[np.isfinite(seconds)]
    found = np.percentile(known, PERCENTILES).tolist() if len(known) else [None] * len(PERCENTILES)
    return {f"p{p}_s": value for p, value in zip(PERCENTILES, found, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The records of batch_times.jsonl as columns; NaN where a record has no usable number."""

    idx: Floats  #: the batch's number
    t_s: Floats  #: seconds from the first request until the batch was received
    dt_s: Floats  #: seconds of the whole step
    fetch_s: Floats  #: of these, until the batch was there
    samples: Floats  #: zero where the record does not say
    warmup: NDArray[np.bool_]
    dominant: NDArray[np.object_]  #: the dataset with most samples; "" where it is not known
    names: tuple[str, ...]  #: of the datasets, the columns of `counts`
    counts: Floats  #: samples of each dataset in each batch, [batches, names]

    def __len__(self) -> int:
        return len(self.idx)

    def measured(self) -> Batches:
        """Those after the warm-up."""
        keep = ~self.warmup
        columns = ("idx", "t_s", "dt_s", "fetch_s", "samples", "warmup", "dominant", "counts")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})

    def figures(self, elapsed_s: float | None = None) -> dict[str, Any]:
        """What follows from the batches, by the names of result.json; None where it is not known.

        `elapsed_s` is the measured time where it is known better than by the sum of the steps.
        """
        measured = self.measured()
        timed = np.isfinite(measured.dt_s)
        times, waits = measured.dt_s[timed], measured.fetch_s[timed]
        samples = float(measured.samples[timed].sum())
        elapsed = elapsed_s or float(times.sum()) or None
        return {
            "samples_per_s": samples / elapsed if elapsed and samples else None,
            "samples_per_s_spread": measured._spread(),
            "batches_per_s": len(times) / elapsed if elapsed and len(times) else None,
            "batches": len(times),
            "samples": round(samples),
            "elapsed_s": elapsed,
            "mean_s": float(times.mean()) if len(times) else None,
            **percentiles(times),
            "max_s": float(times.max()) if len(times) else None,
            "stall_s_per_step": (
                float(waits.mean()) if len(waits) and np.isfinite(waits).all() else None
            ),
        }

    def _spread(self) -> list[float] | None:
        """Lowest and highest rate of fifths of the batches."""
        if len(self) < 2 * _PARTS or not np.isfinite(self.dt_s).all():
            return None
        # By the clock, because what happens between two steps takes time too; but across lost
        # records it runs on.
        ends = self.t_s if (np.diff(self.idx) == 1).all() else np.cumsum(self.dt_s)
        begins = np.concatenate([[ends[0] - self.dt_s[0]], ends[:-1]])
        rates = []
        for part in np.array_split(np.arange(len(self)), _PARTS):
            seconds = float(ends[part[-1]] - begins[part[0]])
            if seconds <= 0:
                return None
            rates.append(float(self.samples[part].sum()) / seconds)
        return [min(rates), max(rates)]

    def shares(self) -> dict[str, float]:
        """Share of each dataset in the samples after the warm-up; empty where none is known."""
        counts = self.counts[~self.warmup].sum(axis=0)
        total = float(counts.sum())
        return dict(zip(self.names, (counts / total).tolist(), strict=True)) if total > 0 else {}

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Batches:
        """Columns of the records, which are read once and not kept."""
        fields = ("idx", "t_s", "dt_s", "fetch_dt_s", "samples")
        columns, counts = _Columns(fields), _Counts()
        for chunk in _chunks(records):
            columns.add(chunk)
            counts.add(chunk)
        names, table = counts.table()
        idx, t_s, dt_s, fetch_s, samples = (columns[name] for name in fields)
        for times in (dt_s, fetch_s):
            times[times < 0] = np.nan
        if np.isnan(t_s).any():  # older records have no clock: the steps' times add up to one
            t_s = np.cumsum(np.nan_to_num(dt_s))
        if not (np.diff(idx) > 0).all() or np.isnan(idx).any():  # damaged: count them ourselves
            idx = np.arange(len(idx), dtype=np.float64)
        samples = np.where(samples >= 0, samples, table.sum(axis=1))
        dominant = np.array(counts.dominant, dtype=object)
        if names:
            most = table.argmax(axis=1)
            for row in np.flatnonzero(dominant == ""):
                dominant[row] = names[most[row]] if table[row, most[row]] > 0 else ""
        warmup = np.array(counts.warmup, dtype=np.bool_)
        return Batches(idx, t_s, dt_s, fetch_s, samples, warmup, dominant, names, table)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The records of memory.jsonl in MB; NaN where one has no usable number."""

    t_s: Floats  #: seconds since the process was started, some time before its first request
    rss_mb: Floats  #: resident
    anon_mb: Floats  #: anonymous: what cannot be dropped
    available_mb: Floats  #: what the machine or control group still had to give

    def __len__(self) -> int:
        return len(self.t_s)

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Memory:
        """Columns of the records that say when they were taken."""
        names = ("t_s", "rss_mb", "anon_mb", "available_mb")
        columns = _Columns(names)
        for chunk in _chunks(records):
            columns.add(chunk)
        keep = ~np.isnan(columns["t_s"])
        return Memory(*(columns[name][keep] for name in names))


class _Columns:
    """Numbers of records by name, gathered chunk by chunk."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parts: dict[str, list[Floats]] = {name: [np.zeros(0)] for name in names}

    def add(self, chunk: Sequence[Mapping[str, Any]]) -> None:
        for name, parts in self._parts.items():
            parts.append(finite_column([record.get(name) for record in chunk]))

    def __getitem__(self, name: str) -> Floats:
        return np.concatenate(self._parts[name])


class _Counts:
    """Samples by batch and dataset, and what else a record says of its datasets.

    A record without counts gives one sample to its dominant dataset.
    """

    def __init__(self) -> None:
        self.dominant: list[str] = []
        self.warmup: list[bool] = []
        self._columns: dict[str, int] = {}
        #: Of each chunk: the row, the column and the value of every count.
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]] = []

    def add(self, chunk: Sequence[Mapping[str, Any]]) -> None:
        sizes: list[int] = []
        places: list[int] = []
        values: list[Any] = []
        first = len(self.dominant)
        for record in chunk:
            name = record.get("dominant_dataset")
            self.dominant.append(sys.intern(name) if isinstance(name, str) else "")
            self.warmup.append(record.get("is_warmup") in (True,))
            counts = record.get("dataset_counts")
            if not isinstance(counts, dict) or not counts:
                counts = {self.dominant[-1]: 1} if self.dominant[-1] else {}
            sizes.append(len(counts))
            columns = self._columns
            places.extend([columns.setdefault(name, len(columns)) for name in counts])
            values.extend(counts.values())
        rows = np.repeat(np.arange(first, first + len(chunk)), sizes)
        numbers = np.maximum(np.nan_to_num(finite_column(values)), 0.0)
        self._parts.append((rows, np.array(places, dtype=np.int64), numbers))

    def table(self) -> tuple[tuple[str, ...], Floats]:
        """Names, and counts by batch and name; the rarest names are added up past a limit."""
        names = list(self._columns)
        total = np.zeros(len(names))
        for _, places, numbers in self._parts:
            total += np.bincount(places, numbers, len(names))
        column = np.arange(len(names))
        if len(names) > _NAMES:
            largest = np.argsort(-total, kind="stable")[: _NAMES - 1]
            column = np.full(len(names), _NAMES - 1)
            column[largest] = np.arange(_NAMES - 1)
            names = [names[i] for i in largest] + ["(the rest)"]
        table = np.zeros((len(self.dominant), len(names)))
        for rows, places, numbers in self._parts:
            np.add.at(table, (rows, column[places]), numbers)
        return tuple(names), table


def _chunks(records: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(records)
    while chunk := list(islice(left, _CHUNK)):
        yield chunk
