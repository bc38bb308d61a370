"""Several sources as one stream in Python: one tf.data iterator each, pulled ahead by threads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace.engine.feeders import Feeders
from headrace.measure.baselines.tfdata.frames import decode_all
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.samples import Shape

__all__ = ["PythonMixer"]

Columns = dict[str, Any]  #: arrays whose first dimension is samples; `frames` may be a tuple
Row = tuple[Columns, int]


class PythonMixer:
    """Batches of samples drawn by weight from the queues of all sources.

    It starts when `python_prefetch_min_ready_datasets` sources have a block ready. Which source
    comes next is drawn by the weights alone, and a source that is not ready is waited for: taking
    another instead would give slow sources less than their share.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float],
        options: Options,
        shape: Shape,
        batch_size: int,
        *,
        whole: bool,
    ) -> None:
        mixing = options.mixing
        self._options, self._shape = options, shape
        self._weights = list(weights)
        self._batch_size, self._whole = batch_size, whole
        self._random = random.Random(shape.seed)
        blocks = [each.batch(mixing.mix_block_length).as_numpy_iterator() for each in datasets]
        self._sources: Feeders[Columns] = Feeders(
            blocks,
            depth=mixing.python_prefetch_queue_size,
            threads=mixing.python_prefetch_threads or None,
            name="headrace-tfdata-source",
        )
        self._ahead: Feeders[Columns] | None = None
        depth = options.prefetch.final_stream_buffer
        self._batches: Iterator[Columns] = self._assembled()
        if depth:
            self._ahead = Feeders(
                [self._batches], depth=max(1, depth), name="headrace-tfdata-batch"
            )
            self._batches = iter(partial(self._ahead.take, 0), None)

    def __iter__(self) -> Iterator[Columns]:
        return self

    def __next__(self) -> Columns:
        return next(self._batches)

    @property
    def threads(self) -> int:
        """Threads of Python; those of TensorFlow are not among them."""
        ahead = self._ahead.statistics().threads if self._ahead else 0
        return self._sources.statistics().threads + ahead

    def close(self) -> None:
        """End the threads."""
        self._sources.close()
        if self._ahead:
            self._ahead.close()
        self._batches = iter(())  # it refers to this object, which would wait for the collector

    def _assembled(self) -> Iterator[Columns]:
        """Batches, decoded if they are not yet."""
        decode = _decoder(self._shape, self._options)
        rows: list[Row] = []
        for row in self._shuffled(self._rows()):
            rows.append(row)
            if len(rows) == self._batch_size:
                yield decode(_joined(rows))
                rows = []
        if rows and not self._whole:
            yield decode(_joined(rows))

    def _rows(self) -> Iterator[Row]:
        """Samples in the order of the draws; a source that ends drops out."""
        self._sources.wait_ready(
            min(self._options.mixing.python_prefetch_min_ready_datasets, len(self._weights))
        )
        numbers, weights = list(range(len(self._weights))), list(self._weights)
        while numbers:
            (place,) = self._random.choices(range(len(numbers)), weights)
            try:
                block = self._sources.take(numbers[place])
            except StopIteration:
                del numbers[place], weights[place]
                continue
            frames = block["frames"]
            yield from ((block, i) for i in range(len(_first(frames))))

    def _shuffled(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Through a buffer, as tf.data's shuffle does it."""
        size, buffer = self._options.shuffle.global_buffer, []
        for row in rows:
            buffer.append(row)
            if len(buffer) > size:
                yield self._drawn(buffer)
        while buffer:
            yield self._drawn(buffer)

    def _drawn(self, buffer: list[Row]) -> Row:
        place = self._random.randrange(len(buffer))
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        return buffer.pop()


def _first(frames: Any) -> Any:
    return frames[0] if isinstance(frames, tuple) else frames


def _joined(rows: Sequence[Row]) -> Columns:
    """Rows of many blocks as the columns of one batch."""
    found: Columns = {}
    for name, column in rows[0][0].items():
        if isinstance(column, tuple):
            found[name] = tuple(
                np.array([block[name][part][i] for block, i in rows], object)
                for part in range(len(column))
            )
        else:
            found[name] = np.stack([block[name][i] for block, i in rows])
    return found


def _decoder(shape: Shape, options: Options) -> Any:
    """Decodes the frames of a batch, in parallel, if they are encoded."""
    import tensorflow as tf

    if not options.pipeline.post_mix_decode_resize:
        return lambda columns: columns
    calls = options.pipeline.transform_parallelism
    parallel = calls if calls > 0 else 10  # TensorFlow's own default

    def frames_of(encoded: Any) -> Any:
        count = tf.shape(encoded)
        flat = decode_all(tf.reshape(encoded, [-1]), shape.size, parallel)
        return tf.reshape(flat, [count[0], count[1], *shape.size, 3])

    compiled = tf.function(frames_of, input_signature=[tf.TensorSpec([None, None], tf.string)])

    def decode(columns: Columns) -> Columns:
        encoded = tf.constant(np.stack(columns["frames"], axis=1))
        return {**columns, "frames": compiled(encoded)._numpy()}

    return decode
