"""The pipelines of a job at work: batches as every backend delivers them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.config import Mixture
from headrace.errors import DataError
from headrace.loader import Batch
from headrace.loader.mixture import to_validate
from headrace.measure.baselines.baseline import job_workers
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.sources import Shape, describe, shares
from headrace.measure.job import Job

if TYPE_CHECKING:  # it imports TensorFlow
    from headrace.measure.baselines.tfdata.pipeline import PythonMixer


class TfdataBatches:
    """Batches of a job, without end; with `repeat=False` one pass over every source."""

    def __init__(self, job: Job, *, repeat: bool = True) -> None:
        self._cpus = job_workers(job)
        self.options = options = Options.from_values(job.options).for_cpus(self._cpus)
        self._job, self._repeat = job, repeat
        self._sources = describe(job.mixture, options)
        self.names = tuple(each.name for each in self._sources)
        self.shares = shares(self._sources)
        _start_tensorflow()
        mode = options.metadata.mode or job.loader.metadata
        mode = "dataset" if mode == "dataset_only" else mode  # as the original called it
        self._shape = Shape.of(self._sources, job.loader.size, mode, job.loader.seed)
        self._datasets: Any = None
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._mixer: PythonMixer | None = None
        self._drawn = 0
        self._turn = 0  # of iterators; those of an earlier turn have ended

    def __iter__(self) -> Iterator[Batch]:
        if self._iterator is None or not self.options.iterator.persistent:
            self._stop()
            self._iterator = self._start()
        return self._batches(self._turn)

    def validation(self, batches: int) -> Iterator[Batch]:
        """Batches of a second set of pipelines over the validation splits, as its users do it.

        They are built when validation begins and dropped when it ends.
        """
        second = TfdataBatches(replace(self._job, mixture=_validation_mixture(self._job.mixture)))
        try:
            yield from islice(second, batches)
        finally:
            second.close()

    def begin_trace(self, folder: Path) -> None:
        """By TensorFlow's own profiler; TensorBoard opens what it writes."""
        import tensorflow as tf

        tf.profiler.experimental.start(str(folder))

    def end_trace(self) -> tuple[()]:
        import tensorflow as tf

        tf.profiler.experimental.stop()
        return ()

    def figures(self) -> Mapping[str, Any]:
        """Threads of tf.data are those of its pool; a source's own are not counted."""
        pool = self.options.mixing.per_dataset_private_threadpool_size
        return {
            "threads": pool or self._cpus,
            "processes": [],
            "python_threads": self._mixer.threads if self._mixer else 0,
            "asked": dict(zip(self.names, self.shares, strict=True)),
            "options": self.options.flat(),
        }

    def close(self) -> None:
        """End the pipelines and their threads."""
        self._stop()
        self._datasets = None

    def _start(self) -> Iterator[dict[str, Any]]:
        from headrace.measure.baselines.tfdata import pipeline

        options, shape, loader = self.options, self._shape, self._job.loader
        if self._datasets is None:
            self._datasets = [
                pipeline.source_dataset(
                    each,
                    number,
                    options,
                    shape,
                    sources=len(self._sources),
                    repeat=self._repeat,
                )
                for number, each in enumerate(self._sources)
            ]
        size, threads = loader.batch_size, loader.workers or None
        if options.mixing.strategy == "python":
            datasets = [pipeline.with_options(each, options, threads) for each in self._datasets]
            self._mixer = pipeline.PythonMixer(
                datasets, self.shares, options, shape, size, whole=self._repeat
            )
            return self._mixer
        stream = pipeline.mixed(self._datasets, self.shares, options, shape.seed)
        stream = pipeline.batches(stream, options, shape, size, whole=self._repeat)
        return iter(pipeline.with_options(stream, options, threads).as_numpy_iterator())

    def _stop(self) -> None:
        self._turn += 1
        if self._mixer is not None:
            self._mixer.close()
        # tf.data ends the threads of a pipeline when its iterator is collected: there must be no
        # other reference to it.
        self._iterator = self._mixer = None

    def _batches(self, turn: int) -> Iterator[Batch]:
        while self._turn == turn and self._iterator is not None:
            try:
                columns = next(self._iterator, None)
            except Exception as error:
                raise _our_error(error) from error
            if columns is None:
                return
            yield self._batch(columns)

    def _batch(self, columns: dict[str, Any]) -> Batch:
        count = len(columns["frames"])
        draws = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        texts: dict[str, Any] = {
            name: [text.decode("utf-8", "replace") for text in columns.pop(name).tolist()]
            for name in ("language", "robot")
            if name in columns
        }
        return Batch(names=self.names, draws=draws, **columns, **texts)


def _validation_mixture(mixture: Mixture) -> Mixture:
    """The same sources with their validation splits to draw from, all pairs of them."""
    sources = tuple(
        replace(source, split=source.val_split or "", samples_per_episode=0)
        for source in to_validate(mixture.active)
    )
    return replace(mixture, sources=sources)


def _our_error(error: Exception) -> Exception:
    """An error of TensorFlow as one that says what to do; any other as it is."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return error
    return DataError(
        f"tf.data stopped: {error.message.splitlines()[0]}",
        remedy="Where data is damaged, `headrace verify` names the dataset, file and episode",
    )


def _start_tensorflow() -> None:
    """Import TensorFlow without the GPU, which belongs to the training."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # it has been used already
        tf.config.set_visible_devices([], "GPU")
