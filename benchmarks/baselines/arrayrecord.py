"""Grain over ArrayRecord, the format it is made for.

Stored is every step of the episodes once: its frame, and what goes with the pair that starts there
(the action is summed when it is written, so a pair is two records and not one for each step
between). One file a source, `group_size:1` as Grain requires for random access, no compression
(the frames are compressed already).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines.stored import INSTALL, Converter, EncodedPair, PairDecoder, Stored
from headrace.measure.baselines.baseline import Baseline, Conversion, Delivery, job_workers
from headrace.measure.baselines.grain import (
    OPTIONS,
    SHUFFLE,
    Item,
    ItemSource,
    batches,
    grain_knobs,
    resolve_counts,
)
from headrace.measure.job import Job
from headrace.sampling.items import SourceItems, valid_starts

__all__ = ["BASELINE"]

_LENGTH = struct.Struct("<I")


def _convert(job: Job, folder: Path) -> Conversion:
    from array_record.python import array_record_module

    converter = Converter(job)
    for number in range(len(converter.stored.names)):
        part = converter.stored.part(folder, number)
        writer = array_record_module.ArrayRecordWriter(
            f"{part}.array_record", "group_size:1,uncompressed"
        )
        steps = np.zeros(len(converter.samples.episodes[number]), np.int64)
        for episode, frame, about in converter.steps(number):
            writer.write(_LENGTH.pack(len(about)) + about + frame)
            steps[episode] += 1
        writer.close()
        np.save(f"{part}.steps.npy", steps)
    return converter.finish(folder)


class _Pairs:
    """Reads the two records of a pair; Grain sends it to its workers."""

    def __init__(self, files: Sequence[str], steps: Sequence[Any], offsets: Sequence[int]) -> None:
        import grain

        self._first = [np.cumsum(each) - each for each in steps]
        self._offsets = offsets
        self._records = [grain.sources.ArrayRecordDataSource(file) for file in files]

    def __call__(self, item: Item) -> EncodedPair:
        first = int(self._first[item.source][item.episode]) + item.start
        last = first + self._offsets[item.source]
        # One by one: `__getitems__` starts a pool of threads in each call.
        one, two = self._records[item.source][first], self._records[item.source][last]
        return EncodedPair((_frame(one), _frame(two)), one[4 : 4 + _LENGTH.unpack_from(one)[0]])


def _frame(record: bytes) -> memoryview:
    return memoryview(record)[4 + _LENGTH.unpack_from(record)[0] :]


def _open(job: Job, converted: Path | None) -> AbstractContextManager[Delivery]:
    stored = Stored.load(converted, job)
    assert converted is not None
    counts = resolve_counts(BASELINE.with_defaults(job.options), job_workers(job))
    parts = [stored.part(converted, number) for number in range(len(stored.names))]
    steps = [np.load(f"{part}.steps.npy") for part in parts]
    items = [
        SourceItems(valid_starts(mine, k), source.samples_per_episode)
        for mine, k, source in zip(steps, stored.offsets, job.mixture.active, strict=True)
    ]
    weights = stored.weights(job, [mine.length for mine in items])
    sources = [ItemSource(number, mine) for number, mine in enumerate(items)]
    decoder = PairDecoder(stored, job)

    def start() -> Iterator[dict[str, Any]]:
        fetch = _Pairs([f"{part}.array_record" for part in parts], steps, stored.offsets)
        return batches(sources, weights, job, fetch, decoder.decode, **counts)

    return closing(Delivery(stored.names, start, **counts))


BASELINE = Baseline(
    name="grain_arrayrecord",
    needs=("grain", "array_record"),
    install=INSTALL,
    shuffle=SHUFFLE,
    open=_open,
    convert=_convert,
    options=OPTIONS,
    knobs=lambda cpus: grain_knobs("grain_arrayrecord", cpus),
)
