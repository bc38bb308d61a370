"""What a run recorded over time: its batches and its memory, as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.measure.report.records import finite_column

__all__ = ["Batches", "Memory"]

Floats = NDArray[np.float64]
#: Most dataset names kept apart; damaged or hostile records cannot make the table larger.
_NAMES = 512


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The records of batch_times.jsonl; NaN where a record has no usable number."""

    #: The batch's number.
    idx: Floats
    #: Seconds from the first request until the batch was received.
    t_s: Floats
    #: Seconds of the whole step.
    dt_s: Floats
    #: Batches of the warm-up.
    warmup: NDArray[np.bool_]
    #: The dataset with most samples in each batch; "" where it is not known.
    dominant: NDArray[np.str_] | NDArray[np.object_]
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
            self.warmup[keep],
            self.dominant[keep],
            self.names,
            self.counts[keep],
        )

    @staticmethod
    def of(records: Sequence[Mapping[str, Any]]) -> Batches:
        """Columns of the records."""
        names, counts = _counts(records)
        idx = _column(records, "idx")
        dt_s = _column(records, "dt_s")
        dt_s[dt_s < 0] = np.nan
        t_s = _column(records, "t_s")
        if np.isnan(t_s).any():  # older records have no clock: the steps' times add up to one
            t_s = np.cumsum(np.nan_to_num(dt_s))
        return Batches(
            np.where(np.isnan(idx), np.arange(len(idx)), idx),
            t_s,
            dt_s,
            np.array([record.get("is_warmup") is True for record in records], dtype=np.bool_),
            _dominant(records, names, counts),
            names,
            counts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The records of memory.jsonl in MB; NaN where one has no usable number."""

    #: Seconds since the first request.
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
    def of(records: Sequence[Mapping[str, Any]]) -> Memory:
        """Columns of the records that say when they were taken."""
        t_s = _column(records, "t_s")
        keep = ~np.isnan(t_s)
        columns = (_column(records, name)[keep] for name in ("rss_mb", "anon_mb", "available_mb"))
        return Memory(t_s[keep], *columns)


def _column(records: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return finite_column([record.get(name) for record in records])


def _counts(records: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], Floats]:
    """Samples by batch and dataset; a record without counts gives one to its dominant dataset."""
    columns: defaultdict[str, int] = defaultdict(lambda: len(columns))
    rows: list[int] = []
    places: list[int] = []
    values: list[Any] = []
    for row, record in enumerate(records):
        counts = record.get("dataset_counts")
        if not isinstance(counts, dict) or not counts:
            name = record.get("dominant_dataset")
            counts = {name: 1} if isinstance(name, str) and name else {}
        rows.extend([row] * len(counts))
        places.extend([columns[name] for name in counts])
        values.extend(counts.values())
    numbers = np.maximum(np.nan_to_num(finite_column(values)), 0.0)
    place = np.array(places, dtype=np.int64)
    names = list(columns)
    if len(names) > _NAMES:
        largest = np.argsort(-np.bincount(place, numbers, len(names)), kind="stable")
        renamed = np.full(len(names), _NAMES - 1)
        renamed[largest[: _NAMES - 1]] = np.arange(_NAMES - 1)
        names = [names[i] for i in largest[: _NAMES - 1]] + ["(the rest)"]
        place = renamed[place]
    width = len(names)
    flat = np.array(rows, dtype=np.int64) * width + place
    table = np.bincount(flat, numbers, len(records) * width) if width else np.zeros(0)
    return tuple(names), table.astype(np.float64).reshape(len(records), width)


def _dominant(
    records: Sequence[Mapping[str, Any]], names: tuple[str, ...], counts: Floats
) -> NDArray[np.object_]:
    """The name each record gives, or else that of its largest count."""
    most = counts.argmax(axis=1) if names else np.zeros(len(records), dtype=np.int64)
    found = np.empty(len(records), dtype=object)
    for row, record in enumerate(records):
        name = record.get("dominant_dataset")
        if isinstance(name, str) and name:
            found[row] = name
        else:
            found[row] = names[most[row]] if names and counts[row, most[row]] > 0 else ""
    return found
