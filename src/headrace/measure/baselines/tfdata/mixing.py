"""Several sources as one stream inside tf.data: `sample` and `choose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.measure.baselines.tfdata.frames import decode_sample
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.samples import Shape

__all__ = ["batches", "mixed", "with_options"]

_SELECTED_AT_ONCE = 4096  # draws of the selector made by one call


def mixed(datasets: Sequence[Any], weights: Sequence[float], options: Options, seed: int) -> Any:
    """One stream of samples; a source that ends drops out."""
    import tensorflow as tf

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
    import tensorflow as tf

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
            lambda sample: decode_sample(sample, shape.size),
            num_parallel_calls=pipeline.transform_parallelism,
        )
    stream = stream.batch(batch_size, drop_remainder=whole)
    return stream.prefetch(final) if final else stream


def with_options(dataset: Any, options: Options, threads: int | None) -> Any:
    """Threads and order of a whole pipeline."""
    import tensorflow as tf

    settings = tf.data.Options()
    # Where TFDS decodes the steps of an episode it does so in parallel, and without an order the
    # steps themselves would change places.
    settings.deterministic = (
        options.pipeline.deterministic or not options.tfds_read.skip_steps_decoding
    )
    # Only where a knob asks for it: 29 sources on two cores gave 471 samples/s with it and 659
    # without, and the one close that took nine seconds was seen with it.
    settings.autotune.enabled = options.autotunes
    # One image is decoded by one thread: kernels that split it further only wait for each other.
    settings.threading.max_intra_op_parallelism = 1
    pool = options.mixing.per_dataset_private_threadpool_size or threads or 0
    if pool:
        settings.threading.private_threadpool_size = pool
    return dataset.with_options(settings)
