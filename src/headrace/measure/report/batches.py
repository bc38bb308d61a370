"""What a run recorded over time: its batches and its memory, as columns."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.measure.report.records import finite_column

__all__ = ["Batches", "Memory"]

Floats = NDArray[np.float64]
#: Most dataset names kept apart; damaged or hostile records cannot make the table larger.
_NAMES = 512
#: Records turned into columns at a time: a run of a million batches is not held as a million dicts.
_CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The records of batch_times.jsonl; NaN where a record has no usable number."""

    #: The batch's number.
    idx: Floats
    #: Seconds from the first request until the batch was received.
    t_s: Floats
    #: Seconds of the whole step.
    dt_s: Floats
    #: Seconds of it until the batch was there.
    fetch_s: Floats
    #: Batches of the warm-up.
    warmup: NDArray[np.bool_]
    #: The dataset with most samples in each batch; "" where it is not known.
    dominant: NDArray[np.object_]
    #: The datasets, as columns of `counts`.
    names: tuple[str, ...]
    #: Samples of each dataset in each batch, [batches, names].
    counts: Floats

    def __len__(self) -> int:
        return len(self.idx)

    @property
    def samples(self) -> Floats:
        """Samples in each batch; zero where the records do not say."""
        total: Floats = self.counts.sum(axis=1)
        return total

    def measured(self) -> Batches:
        """Those after the warm-up."""
        keep = ~self.warmup
        return Batches(
            self.idx[keep],
            self.t_s[keep],
            self.dt_s[keep],
            self.fetch_s[keep],
            self.warmup[keep],
            self.dominant[keep],
            self.names,
            self.counts[keep],
        )

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Batches:
        """Columns of the records, which are read once and not kept."""
        columns, fields = _Columns(), ("idx", "t_s", "dt_s", "fetch_dt_s")
        counts = _Counts()
        for chunk in _chunks(records):
            columns.add(chunk, fields)
            counts.add(chunk)
        names, table = counts.table()
        idx, t_s, dt_s, fetch_s = (columns[name] for name in fields)
        for times in (dt_s, fetch_s):
            times[times < 0] = np.nan
        if np.isnan(t_s).any():  # older records have no clock: the steps' times add up to one
            t_s = np.cumsum(np.nan_to_num(dt_s))
        if not (np.diff(idx) > 0).all() or np.isnan(idx).any():  # damaged: count them ourselves
            idx = np.arange(len(idx), dtype=np.float64)
        dominant = np.array(counts.dominant, dtype=object)
        if names:
            most = table.argmax(axis=1)
            for row in np.flatnonzero(dominant == ""):
                dominant[row] = names[most[row]] if table[row, most[row]] > 0 else ""
        return Batches(
            idx,
            t_s,
            dt_s,
            fetch_s,
            np.array(counts.warmup, dtype=np.bool_),
            dominant,
            names,
            table,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The records of memory.jsonl in MB; NaN where one has no usable number."""

    #: Seconds since the process was started, which is some time before its first request.
    t_s: Floats
    #: Resident memory.
    rss_mb: Floats
    #: Anonymous memory: what cannot be dropped.
    anon_mb: Floats
    #: What the machine or control group still had to give.
    available_mb: Floats

    def __len__(self) -> int:
        return len(self.t_s)

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Memory:
        """Columns of the records that say when they were taken."""
        columns, names = _Columns(), ("t_s", "rss_mb", "anon_mb", "available_mb")
        for chunk in _chunks(records):
            columns.add(chunk, names)
        keep = ~np.isnan(columns["t_s"])
        return Memory(*(columns[name][keep] for name in names))


class _Columns:
    """Numbers of records by name, gathered chunk by chunk."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Floats]] = defaultdict(list)

    def add(self, chunk: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
        for name in names:
            self._parts[name].append(finite_column([record.get(name) for record in chunk]))

    def __getitem__(self, name: str) -> Floats:
        return np.concatenate([np.zeros(0), *self._parts[name]])


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
            self.warmup.append(record.get("is_warmup") is True)
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
