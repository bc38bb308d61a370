"""The pipeline of one source: episodes, their samples, and as much decoding as is asked of it."""

from __future__ import annotations

from typing import Any

from headrace.measure.baselines.tfdata.described import Described
from headrace.measure.baselines.tfdata.episodes import EpisodeReader
from headrace.measure.baselines.tfdata.frames import decode_all, decode_sample, fit, stack_sample
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.samples import Shape, cut

__all__ = ["source_dataset"]


def source_dataset(
    source: Described,
    number: int,
    options: Options,
    shape: Shape,
    *,
    sources: int,
    repeat: bool,
) -> Any:
    """A `tf.data.Dataset` of a source's samples: for ever, or one pass."""
    import tensorflow as tf

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
            found["frames"] = fit(found["frames"], shape.size)
        elif not pipeline.emit_encoded_pairs:
            # AUTOTUNE is not for loops inside a function; ten is TensorFlow's own default.
            parallel = transform if transform > 0 else 10
            found["frames"] = decode_all(found["frames"], shape.size, parallel)
        return cut(found, source, number, shape, draw)

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
        found = found.map(stack_sample)
    elif not pipeline.post_mix_decode_resize:
        found = found.map(
            lambda sample: decode_sample(sample, shape.size), num_parallel_calls=transform
        )
    if prefetch.per_dataset_stream_buffer:
        found = found.prefetch(prefetch.per_dataset_stream_buffer)
    return found
