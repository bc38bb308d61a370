"""The samples of a mixture as an array, for frameworks that bring threads of their own.

Sources, weights, windows and fields are resolved as for the loader, and frames and fields are read
by its reader. What differs is who decides on the order, who calls, and how a batch comes back.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from headrace.config import Mixture
from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.slots import ArraySpec
from headrace.engine.statistics import Counters
from headrace.loader.mixture import OpenedMixture
from headrace.loader.options import LoaderOptions
from headrace.loader.plan import Planner, SamplePlan
from headrace.loader.sizes import batch_specs, requested_workers
from headrace.loader.work import SampleFiller, SampleWork
from headrace.reading.local import shared_files
from headrace.sampling.sampler import Draws


class _NoBudget:
    """Samples that are read one by one are not charged to a budget."""

    def charge(self, size: int, what: str, /) -> None:
        """Allow everything."""

    def release(self, size: int, /) -> None:
        """Do nothing: nothing was counted."""


class MixtureSamples(OpenedMixture):
    """All samples of a mixture. It can be sent to other processes and used by many threads.

    Sample (source, episode, t) is window t of the `episode`-th episode of the source's split.
    """

    def __init__(self, mixture: Mixture | str | Path, options: LoaderOptions) -> None:
        super().__init__(mixture, options, shared_files())
        self.specs: dict[str, ArraySpec] = batch_specs(options, self.sources)
        self._planner = Planner(self.sources, self.episodes, options, self.sampler)
        self._own = threading.local()
        # Callers have as many threads or processes as CPUs. Here and not in the worker: in a forked
        # child OpenCV would wait for pool threads that the fork left behind.
        use_one_thread_per_call()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()
        use_one_thread_per_call()

    def draws(self, picked: npt.ArrayLike) -> Draws:
        """Samples that someone else has picked: [n, 3], source, episode and t of each."""
        columns = np.array(picked, np.int64).reshape(-1, 3)
        zeros = np.zeros(len(columns), np.int64)
        source = columns[:, 0].astype(np.int32)
        return Draws(np.arange(len(columns)), source, zeros, zeros, columns[:, 1], columns[:, 2])

    def plan(self, draws: Draws) -> SamplePlan:
        """Where their bytes lie, as the loader's plan has it."""
        return self._planner.plan(draws, np.arange(len(draws)))

    def read(self, draws: Draws, frames: NDArray[np.uint8] | None = None) -> dict[str, Any]:
        """Read and decode samples: the fields of a `Batch`, except `names` and `draws`.

        `frames` is the memory they are decoded into, where the caller has some.
        """
        arrays: dict[str, Any] = {
            name: np.empty((len(draws), *spec.shape[1:]), spec.dtype)
            for name, spec in self.specs.items()
            if frames is None or name != "frames"
        }
        if frames is not None:
            arrays["frames"] = frames
        _, error, texts = self._filler().fill(self.plan(draws).matrix, arrays, Counters())
        if error is not None:
            raise error
        if texts is not None:
            for name, found in zip(("language", "robot"), texts, strict=True):
                arrays[name] = [found.get(row, "") for row in range(len(draws))]
        return arrays

    def _filler(self) -> SampleFiller:
        """This thread's filler, in this process."""
        filler: SampleFiller | None = getattr(self._own, "filler", None)
        if filler is None:
            threads, _ = requested_workers(self.options.workers)
            work = SampleWork(self.sources, self.options, shared_files(), threads)
            filler = self._own.filler = work.open(_NoBudget())
        return filler
