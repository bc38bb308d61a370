"""The tf.data pipelines: episodes of each source, their samples, one mixed stream, batches.

Imports TensorFlow, so it is imported when a pipeline is built.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.engine.feeders import Feeders
from headrace.measure.baselines.tfdata.episodes import EpisodeReader
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.sources import Shape, SourceSpec

Size = tuple[int, int]
Columns = dict[str, Any]  #: arrays whose first dimension is samples; `frames` may be a tuple
Row = tuple[Columns, int]

_SELECTED_AT_ONCE = 4096  # draws of the selector made by one call


def source_dataset(
    source: SourceSpec,
    number: int,
    options: Options,
    shape: Shape,
    *,
    sources: int,
    repeat: bool,
) -> Any:
    """A `tf.data.Dataset` of a source's samples: without end, or one pass."""
    pipeline, shuffle, prefetch = options.pipeline, options.shuffle, options.prefetch
    reader = EpisodeReader(source, options, sources, full=shape.metadata == "full")
    transform = options.calls_per_source(pipeline.transform_parallelism, sources)
    seed = shape.seed * 1000 + number
    episodes = reader.dataset(shuffle_files=repeat, seed=seed)
    if shuffle.episode_buffer:
        episodes = episodes.shuffle(shuffle.episode_buffer, seed=seed)
    if repeat:
        episodes = episodes.repeat()
    if prefetch.episode_queue_buffer:
        episodes = episodes.prefetch(prefetch.episode_queue_buffer)

    def columns(draw: Any, episode: Any, steps: Any) -> Any:
        found = reader.tensors(episode, steps)
        if reader.gives_pixels:
            found["frames"] = _fit(found["frames"], shape.size)
        elif not pipeline.emit_encoded_pairs:
            # AUTOTUNE is not for loops inside a function; ten is TensorFlow's own default.
            parallel = transform if transform > 0 else 10
            found["frames"] = _decode_all(found["frames"], shape.size, parallel)
        return _cut(found, source, number, shape, draw)

    def samples(draw: Any, episode: Any) -> Any:
        if options.tfds_read.skip_steps_decoding:
            made = columns(draw, episode, reader.steps(episode))
            found = tf.data.Dataset.from_tensor_slices(made)
        else:
            whole = reader.decoded_steps(episode)
            found = whole.map(lambda steps: columns(draw, episode, steps)).unbatch()
        if shuffle.intra_episode_buffer:
            found = found.shuffle(shuffle.intra_episode_buffer, seed=draw * 1000 + seed)
        return found

    calls = options.calls_per_source(pipeline.interleave_parallelism, sources)
    found = episodes.enumerate().interleave(
        samples,
        cycle_length=pipeline.episode_concurrency,
        num_parallel_calls=None if calls == 1 else calls,
    )
    if not pipeline.emit_encoded_pairs:
        found = found.map(lambda sample: {**sample, "frames": tf.stack(sample["frames"])})
    elif not pipeline.post_mix_decode_resize:
        found = found.map(
            lambda sample: _decode_sample(sample, shape.size), num_parallel_calls=transform
        )
    if prefetch.per_dataset_stream_buffer:
        found = found.prefetch(prefetch.per_dataset_stream_buffer)
    return found


def _cut(episode: dict[str, Any], source: SourceSpec, number: int, shape: Shape, draw: Any) -> Any:
    """The samples of an episode as columns: tensors whose first dimension is samples.

    `number` is the source's, `draw` the episode's place in its source's sequence: starts are drawn
    by it and the seed. `frames` is a tuple, so that encoded ones are not copied here.
    """
    frames = episode["frames"]
    count = tf.maximum(tf.shape(frames)[0] - source.k, 0)
    take: Callable[[Any, int], Any]
    if source.samples_per_episode:
        wanted = tf.where(count > 0, source.samples_per_episode, 0)
        seed = tf.stack([tf.constant(shape.seed + (number << 32), tf.int64), draw])
        starts = tf.random.stateless_uniform([wanted], seed, 0, tf.maximum(count, 1), tf.int32)

        def take(values: Any, step: int) -> Any:
            return tf.gather(values, starts + step)
    else:
        wanted, starts = count, tf.range(count)

        def take(values: Any, step: int) -> Any:
            return values[step : step + count]

    found: dict[str, Any] = {"frames": tuple(take(frames, step) for step in source.offsets)}
    if shape.metadata == "none":
        return found
    found["dataset"] = tf.fill([wanted], tf.constant(number, tf.int32))
    if shape.metadata == "dataset":
        return found
    found["episode_id"] = tf.fill([wanted], episode["episode_id"])
    found["frame_idx"] = starts
    found["offset"] = tf.fill([wanted], tf.constant(source.k, tf.int32))
    found["robot"] = tf.fill([wanted], episode["robot"])
    found["language"] = take(episode["language"], 0) if source.language else tf.fill([wanted], "")
    action = state = tf.zeros([wanted, 0])
    if source.action:
        # Summed as they are, not as differences of running sums, which would lose digits.
        action = tf.add_n([take(episode["action"], step) for step in range(source.k)])
    if source.state:
        state = take(episode["state"], 0)
    for name, values, width in (("action", action, shape.action), ("state", state, shape.state)):
        padded = tf.pad(values, [[0, 0], [0, width - values.shape[1]]])
        found[name] = tf.ensure_shape(padded, [None, width])
    return found


def _decode_frame(encoded: Any, size: Size) -> Any:
    """An encoded image as TFDS decodes it, resized; uint8 [H, W, 3]."""
    pixels = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    pixels.set_shape([None, None, 3])
    return _fit(pixels, size)


def _fit(pixels: Any, size: Size) -> Any:
    """Images [..., h, w, c] at a size: bilinear, half-pixel centres, no antialias, 3 channels."""
    channels = pixels.shape[-1]
    if channels == 1:
        pixels = tf.repeat(pixels, 3, axis=-1)
    resized = tf.image.resize(pixels[..., :3], size, method="bilinear")
    return tf.cast(tf.round(resized), tf.uint8)


def _decode_all(encoded: Any, size: Size, parallel: int) -> Any:
    """All images of an episode, or of a batch."""
    frames = tf.map_fn(
        lambda each: _decode_frame(each, size),
        encoded,
        fn_output_signature=tf.TensorSpec((*size, 3), tf.uint8),
        parallel_iterations=parallel,
    )
    return tf.ensure_shape(frames, (None, *size, 3))


def _decode_sample(sample: dict[str, Any], size: Size) -> dict[str, Any]:
    """A sample whose tuple of encoded frames has become uint8 [T, H, W, 3]."""
    frames = tf.stack([_decode_frame(each, size) for each in sample["frames"]])
    return {**sample, "frames": frames}


def mixed(datasets: Sequence[Any], weights: Sequence[float], options: Options, seed: int) -> Any:
    """One stream of samples; a source that ends drops out."""
    if len(datasets) == 1:
        return datasets[0]
    mixing = options.mixing
    if mixing.mix_block_length > 1:
        datasets = [each.batch(mixing.mix_block_length) for each in datasets]
    if mixing.strategy == "choose":
        selector = _selector(weights, mixing.selector_run_length, seed)
        stream = tf.data.Dataset.choose_from_datasets(
            list(datasets), selector, stop_on_empty_dataset=False
        )
    else:
        stream = tf.data.Dataset.sample_from_datasets(
            list(datasets),
            list(weights),
            seed=seed,
            stop_on_empty_dataset=False,
            rerandomize_each_iteration=True,
        )
    return stream.unbatch() if mixing.mix_block_length > 1 else stream


def _selector(weights: Sequence[float], run_length: int, seed: int) -> Any:
    """An endless dataset of source numbers."""
    logits = tf.math.log(tf.constant([list(weights)], tf.float64))

    def draws(block: Any) -> Any:
        key = tf.stack([tf.constant(seed, tf.int64), block])
        drawn = tf.random.stateless_categorical(logits, _SELECTED_AT_ONCE, key)[0]
        return tf.data.Dataset.from_tensor_slices(tf.repeat(drawn, run_length))

    return tf.data.Dataset.counter().flat_map(draws)


def batches(stream: Any, options: Options, shape: Shape, batch_size: int, *, whole: bool) -> Any:
    """Samples of the mixture, shuffled, decoded if they are not yet, in batches."""
    pipeline, final = options.pipeline, options.prefetch.final_stream_buffer
    if options.shuffle.global_buffer:
        stream = stream.shuffle(options.shuffle.global_buffer, seed=shape.seed)
    if pipeline.post_mix_decode_resize:
        stream = stream.map(
            lambda sample: _decode_sample(sample, shape.size),
            num_parallel_calls=pipeline.transform_parallelism,
        )
    stream = stream.batch(batch_size, drop_remainder=whole)
    return stream.prefetch(final) if final else stream


def with_options(dataset: Any, options: Options, threads: int | None) -> Any:
    """Threads and order of a whole pipeline."""
    settings = tf.data.Options()
    # Where TFDS decodes the steps of an episode it does so in parallel, and without an order the
    # steps themselves would change places.
    settings.deterministic = (
        options.pipeline.deterministic or not options.tfds_read.skip_steps_decoding
    )
    # Only where an option asks for it: 29 sources on two cores gave 471 samples/s with it and 659
    # without, and the one close that took nine seconds was seen with it.
    settings.autotune.enabled = options.autotunes
    # One image is decoded by one thread: kernels that split it further only wait for each other.
    settings.threading.max_intra_op_parallelism = 1
    pool = options.mixing.per_dataset_private_threadpool_size or threads or 0
    if pool:
        settings.threading.private_threadpool_size = pool
    return dataset.with_options(settings)


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
        decode = _frame_decoder(self._shape, self._options)
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
            count = len(frames[0] if isinstance(frames, tuple) else frames)
            yield from ((block, i) for i in range(count))

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


def _frame_decoder(shape: Shape, options: Options) -> Any:
    """Decodes the frames of a batch, in parallel, if they are encoded."""
    if not options.pipeline.post_mix_decode_resize:
        return lambda columns: columns
    calls = options.pipeline.transform_parallelism
    parallel = calls if calls > 0 else 10  # TensorFlow's own default

    def frames_of(encoded: Any) -> Any:
        count = tf.shape(encoded)
        flat = _decode_all(tf.reshape(encoded, [-1]), shape.size, parallel)
        return tf.reshape(flat, [count[0], count[1], *shape.size, 3])

    compiled = tf.function(frames_of, input_signature=[tf.TensorSpec([None, None], tf.string)])

    def decode(columns: Columns) -> Columns:
        encoded = tf.constant(np.stack(columns["frames"], axis=1))
        return {**columns, "frames": compiled(encoded)._numpy()}

    return decode
