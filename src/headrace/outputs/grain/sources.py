"""Grain's random access to data: windows of rows and samples of a mixture, in storage order.

Both have `__len__` and `__getitem__`, can be sent to worker processes, and describe themselves the
same way in every process and folder: Grain compares that with what a checkpoint says. They go
wherever Grain wants a `RandomAccessDataSource`; `grain_pipeline` adds headrace's own order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np

from headrace.config import Mixture
from headrace.engine.statistics import Counters
from headrace.formats.parquet.columns import Rows
from headrace.loader.options import LoaderFields, LoaderOptions, Shuffle, changed_options
from headrace.loader.rows.loader import check_hosts
from headrace.loader.rows.plan import RowPlanner, fingerprint_of, order_of
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.work import Outputs, RowWork, Transform
from headrace.loader.samples import MixtureSamples
from headrace.sampling.sampler import Sampler

__all__ = ["DrawnBatches", "SampleSource", "WindowSource"]


class DrawnBatches(Protocol):
    """An endless sequence of draws that can be read in batches, on any thread of any process."""

    def __call__(self, numbers: Sequence[int], /) -> dict[str, Any]:
        """The draws with these numbers, as one batch."""

    def fingerprint(self) -> Mapping[str, Any]:
        """What the sequence depends on beside the seed."""

    @property
    def pass_draws(self) -> int:
        """Draws that make one pass."""


class WindowSource:
    """Windows of rows for Grain; element i is window i, transformed.

    >>> source = WindowSource(hr.RowSet("train", columns=["rtt"]))  # doctest: +SKIP
    >>> grain.MapDataset.source(source).seed(0).shuffle()[0]["rtt"]  # doctest: +SKIP
    """

    def __init__(
        self,
        rows: RowSet | str | os.PathLike[str],
        transform: Transform | None = None,
        outputs: Outputs | None = None,
        *,
        many: bool | None = None,
        seed: int = 0,
    ) -> None:
        self.rows = rows if isinstance(rows, RowSet) else RowSet(rows)
        self.work = RowWork(self.rows, transform, outputs, seed, many=many)

    def __repr__(self) -> str:
        outputs = ", ".join(self.work.outputs)
        return f"WindowSource({self.rows!r}, seed {self.work.seed}, {outputs})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, window: int) -> Rows:
        length = len(self)
        if not -length <= window < length:
            raise IndexError(f"window {window} of {length}")
        return self.work.one(int(window) % length, epoch=0)

    def drawn(self, shuffle: Shuffle, open_pieces: int, world_size: int) -> DrawnBatches:
        """Its windows in headrace's order."""
        check_hosts(len(self.rows), world_size)
        if shuffle == "exact":
            self.rows.fill_store()
        return _DrawnWindows(self.work, shuffle, open_pieces)


class _DrawnWindows:
    """Batches of windows, by draw number."""

    def __init__(self, work: RowWork, shuffle: Shuffle, open_pieces: int) -> None:
        self._work = work
        order = order_of(work.rows, shuffle, work.seed, open_pieces)
        self._planner = RowPlanner(work.rows.windows, order)
        self._fingerprint = fingerprint_of(work.rows, shuffle, open_pieces)

    def __call__(self, numbers: Sequence[int], /) -> dict[str, Any]:
        plan = self._planner.plan(np.array(numbers, np.int64))
        plan.row[:] = np.arange(len(plan))
        arrays = {
            name: np.empty(spec.shape, spec.dtype)
            for name, spec in self._work.specs(len(plan)).items()
        }
        self._work.fill(plan.matrix, arrays, Counters())
        return arrays

    def fingerprint(self) -> Mapping[str, Any]:
        return self._fingerprint

    @property
    def pass_draws(self) -> int:
        return len(self._work.rows)


class SampleSource:
    """Samples of a mixture of RLDS datasets for Grain; element i is draw i of the mixture.

    A mixture is endless; its length here is that of all its samples together, each once. What an
    element holds is what `hr.Batch` has, without the batch dimension.

    >>> source = SampleSource("oxe29.yaml", image_size=256, seed=0)  # doctest: +SKIP
    >>> grain.MapDataset.source(source)[0]["frames"].shape           # doctest: +SKIP
    (2, 256, 256, 3)
    """

    def __init__(
        self,
        mixture: Mixture | str | Path,
        **changes: Unpack[LoaderFields],
    ) -> None:
        if not isinstance(mixture, Mixture):
            mixture = Mixture.load(mixture)
        options = changed_options(LoaderOptions(batch_size=1, workers=1), changes)
        self.samples = MixtureSamples(mixture, options)
        self.names = self.samples.names
        self._length = sum(items.length for items in self.samples.items)

    def __repr__(self) -> str:
        options = self.samples.options
        height, width = options.size
        return (
            f"SampleSource({len(self.names)} sources, {self._length} samples, "
            f"{height}x{width}, seed {options.seed})"
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, draw: int) -> dict[str, Any]:
        if not -self._length <= draw < self._length:
            raise IndexError(f"sample {draw} of {self._length}")
        batch = _DrawnSamples(self.samples)([int(draw) % self._length])
        return {name: values[0] for name, values in batch.items()}

    def drawn(self, shuffle: Shuffle, open_pieces: int, world_size: int) -> DrawnBatches:
        """The mixture's draws, whose order is always the exact one."""
        del shuffle, open_pieces
        check_hosts(self._length, world_size)
        return _DrawnSamples(self.samples)


class _DrawnSamples:
    """Batches of samples, by draw number."""

    def __init__(self, samples: MixtureSamples) -> None:
        self._samples = samples

    def __call__(self, numbers: Sequence[int], /) -> dict[str, Any]:
        values = self._samples.read(self._sampler.draw(np.array(numbers, np.int64)))
        return {
            name: np.array(value) if isinstance(value, list) else value  # texts
            for name, value in values.items()
        }

    @property
    def _sampler(self) -> Sampler:
        return self._samples.sampler

    def fingerprint(self) -> Mapping[str, Any]:
        return self._samples.fingerprint()

    @property
    def pass_draws(self) -> int:
        return sum(items.length for items in self._samples.items)
