"""The knobs of the tf.data backend, under the names that users of the original system know.

Every key is `group.knob`, as in their configs below `data.adapter.tf`. A number of parallel calls
is -1 for tf.data's AUTOTUNE and 1 for none.

Where the defaults come from: encoded pairs are mixed, shuffled, and decoded last, as Octo does it.
Measured on two shared cores, 29 synthetic datasets, batch 64 at 256x256, TensorFlow 2.21, single
runs of 7 to 8 s (samples/s, all pairs / samples_per_episode 1; they vary by 10% and more):

    the defaults                                                   751 / 316
    prefetch.episode_queue_buffer 0                                659 / 296
    prefetch.per_dataset_stream_buffer 1, episode_queue_buffer 0     - / 318
    transform_parallelism -1, episode_queue_buffer 0               471 / -
    emit_encoded_pairs and post_mix_decode_resize false,
      mixing.parallelism_mode full, episode_queue_buffer 0 or 1    819, 827 / not measured

The last decodes a frame once for both pairs it is in, so it is the fastest for all pairs, for 0.5
GB more; it decodes whole episodes, so it is not for samples_per_episode. It is not the default for
that reason alone: a claim about all pairs must be made against it. `choose` and `python` were not
faster than `sample` on a busy machine. Buffers and lengths not named here were not tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AUTOTUNE",
    "Iteration",
    "Metadata",
    "Mixing",
    "Pipeline",
    "Prefetch",
    "Sampling",
    "Shuffle",
    "TfdsRead",
]

AUTOTUNE = -1  #: as in tf.data: it chooses


@dataclass(frozen=True, slots=True)
class TfdsRead:
    """How TFDS reads the records of one source."""

    cycle_length: int = 1  #: shards read in turn
    block_length: int = 1  #: episodes taken from a shard at a time
    decode_parallelism: int = 1  #: episodes parsed at once
    interleave_parallelism: int = 1  #: shards read at once; at most cycle_length
    skip_steps_decoding: bool = True  #: an episode comes as tensors, not as a dataset of steps
    only_needed_fields: bool = True  #: other cameras and fields are not parsed


@dataclass(frozen=True, slots=True)
class Pipeline:
    """From episodes to samples."""

    episode_concurrency: int = 1  #: episodes of a source whose samples are dealt in turn
    transform_parallelism: int = 0  #: frames decoded and resized at once; 0: one a CPU
    interleave_parallelism: int = 1  #: episodes cut into samples at once
    emit_encoded_pairs: bool = True  #: else a source's frames are decoded before they are paired
    post_mix_decode_resize: bool = True  #: decode what leaves the mixture, not what enters it
    deterministic: bool = False  #: the same order for the same seed, for some throughput


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Shuffle buffers; 0 is none."""

    episode_buffer: int = 0  #: episodes of each source
    intra_episode_buffer: int = 0  #: samples of one episode
    global_buffer: int = 1000  #: samples of the mixture


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Elements made ahead; -1 lets tf.data choose, 0 is none."""

    final_stream_buffer: int = 2  #: batches
    per_dataset_stream_buffer: int = 0  #: samples of each source
    episode_queue_buffer: int = 1  #: episodes of each source


@dataclass(frozen=True, slots=True)
class Mixing:
    """How sources become one stream."""

    #: `sample_from_datasets`, `choose_from_datasets`, or one iterator each, mixed in Python
    strategy: Literal["sample", "choose", "python"] = "sample"
    mix_block_length: int = 1  #: samples of a source that come together
    selector_run_length: int = 1  #: `choose`: how often a source is chosen in a row
    #: how a source's parallel calls follow from those asked for: / sources, / sqrt(sources), all
    parallelism_mode: Literal["divide", "sqrt", "full"] = "divide"
    per_dataset_private_threadpool_size: int = 0  #: threads of a pipeline's own; 0: tf.data's pool
    python_prefetch_threads: int = 0  #: `python`: threads that pull; 0: one a source
    python_prefetch_queue_size: int = 2  #: `python`: blocks that wait, of each source
    python_prefetch_min_ready_datasets: int = 1  #: `python`: sources with a block before it starts


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which samples."""

    samples_per_episode: int | None = None  #: None: as the mixture says; 0: all


@dataclass(frozen=True, slots=True)
class Metadata:
    """What goes with the frames."""

    mode: Literal["none", "dataset", "dataset_only", "full"] | None = None  #: None: as the job says


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a second `for` does."""

    persistent: bool = True  #: it goes on with the pipelines of the first; else they are made anew
