"""The options of the tf.data baseline, under the names that users of the original system know.

Every key is `group.option`, as in their configs below `data.adapter.tf`. A number of parallel calls
is -1 for tf.data's AUTOTUNE and 1 for none. Nothing here imports TensorFlow: what cannot work is
refused before TensorFlow would hang on it or complain in its own words.

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

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.config.typed import plain, shown, typed
from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Knob

AUTOTUNE = -1  # as in tf.data: it chooses


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

    episode_concurrency: int = 1  #: episodes of a source whose samples are taken in turn
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
    #: how a source's parallel calls follow from those requested: / sources, / sqrt(sources), all
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
    """What a second `for` over the batches does."""

    persistent: bool = True  #: it continues the first; else pipelines are built again


#: Lowest values of the numbers that are not sizes; where it is -1, that stands for AUTOTUNE.
_LOWEST = {
    "tfds_read.cycle_length": 1,
    "tfds_read.block_length": 1,
    "tfds_read.decode_parallelism": AUTOTUNE,
    "tfds_read.interleave_parallelism": AUTOTUNE,
    "pipeline.episode_concurrency": 1,
    "pipeline.transform_parallelism": AUTOTUNE,
    "pipeline.interleave_parallelism": AUTOTUNE,
    "prefetch.final_stream_buffer": AUTOTUNE,
    "prefetch.per_dataset_stream_buffer": AUTOTUNE,
    "prefetch.episode_queue_buffer": AUTOTUNE,
    "mixing.mix_block_length": 1,
    "mixing.selector_run_length": 1,
    "mixing.python_prefetch_queue_size": 1,
    "mixing.python_prefetch_min_ready_datasets": 1,
}
#: Numbers of parallel calls, of which there is at least one.
_CALLS = (
    "tfds_read.decode_parallelism",
    "tfds_read.interleave_parallelism",
    "pipeline.interleave_parallelism",
)


@dataclass(frozen=True, slots=True)
class Options:
    """All options.

    >>> Options.from_values({"mixing.strategy": "choose"}).mixing.strategy
    'choose'
    """

    tfds_read: TfdsRead = field(default_factory=TfdsRead)
    pipeline: Pipeline = field(default_factory=Pipeline)
    shuffle: Shuffle = field(default_factory=Shuffle)
    prefetch: Prefetch = field(default_factory=Prefetch)
    mixing: Mixing = field(default_factory=Mixing)
    sampling: Sampling = field(default_factory=Sampling)
    metadata: Metadata = field(default_factory=Metadata)
    iterator: Iteration = field(default_factory=Iteration)
    source: Literal["auto", "local"] = "auto"  #: auto: where there is no local copy, `remote_root`
    remote_root: str = "gs://gresearch/robotics"  #: where the registry's datasets are published

    def __post_init__(self) -> None:
        for key, value in self.flat().items():
            if isinstance(value, int):
                _check_number(key, value)
        if not self.remote_root:
            raise UsageError("tfdata.remote_root is ''", remedy="Give a folder or an address.")
        self._check_together()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Options:
        """From dotted keys, as overrides have them."""
        nested: dict[str, Any] = {}
        for key, value in values.items():
            group, _, name = key.rpartition(".")
            (nested.setdefault(group, {}) if group else nested)[name] = value
        return typed(cls, nested, "tfdata")

    def flat(self) -> dict[str, Any]:
        """Dotted keys to values."""
        found: dict[str, Any] = {}
        for name, value in plain(self).items():
            inner = value if isinstance(value, dict) else {"": value}
            found |= {f"{name}.{key}".rstrip("."): each for key, each in inner.items()}
        return found

    @property
    def autotunes(self) -> bool:
        """Whether anything is left to tf.data to choose."""
        return any(value == AUTOTUNE for key, value in self.flat().items() if key in _LOWEST)

    def for_cpus(self, cpus: int) -> Options:
        """With the numbers filled in that follow from the machine."""
        calls = self.pipeline.transform_parallelism or cpus
        pipeline = dataclasses.replace(self.pipeline, transform_parallelism=calls)
        return dataclasses.replace(self, pipeline=pipeline)

    def calls_per_source(self, calls: int, sources: int) -> int:
        """A number of parallel calls as one source of so many gets it.

        >>> [Options.from_values({"mixing.parallelism_mode": m}).calls_per_source(32, 4)
        ...  for m in ("divide", "sqrt", "full")]
        [8, 16, 32]
        """
        if calls == AUTOTUNE:
            return calls
        parts = {"divide": sources, "sqrt": math.sqrt(sources), "full": 1}
        return max(1, int(calls / parts[self.mixing.parallelism_mode]))

    def _check_together(self) -> None:
        """What TensorFlow refuses late or not at all."""
        flat, mixing = self.flat(), self.mixing
        for name, limit in (
            ("tfds_read.interleave_parallelism", "tfds_read.cycle_length"),
            ("pipeline.interleave_parallelism", "pipeline.episode_concurrency"),
        ):
            calls, length = flat[name], flat[limit]
            if calls > length:
                raise UsageError(
                    f"tfdata.{name} is {calls}, above tfdata.{limit}, which is {length}: tf.data "
                    "cannot interleave more at once than it has open",
                    remedy=f"Raise {limit} to {calls}, or lower {name} to {length}.",
                )
        if self.pipeline.post_mix_decode_resize and not self.pipeline.emit_encoded_pairs:
            raise UsageError(
                "tfdata.pipeline.post_mix_decode_resize is true and pipeline.emit_encoded_pairs is "
                "false: nothing encoded reaches the mixture",
                remedy="Set pipeline.post_mix_decode_resize to false, or emit encoded pairs.",
            )
        if mixing.selector_run_length > 1 and mixing.strategy != "choose":
            raise UsageError(
                f"tfdata.mixing.selector_run_length is {mixing.selector_run_length}, but "
                f"mixing.strategy is {mixing.strategy!r}, which has no selector",
                remedy="Set mixing.strategy to choose, or use mixing.mix_block_length.",
            )


def _check_number(key: str, value: int) -> None:
    lowest = _LOWEST.get(key, 0)
    if value < lowest or (value == 0 and key in _CALLS):
        first = 1 if key in _CALLS else max(0, lowest)
        also = ", or -1 for AUTOTUNE" if lowest == AUTOTUNE else ""
        raise UsageError(
            f"tfdata.{key} is {shown(value)}", remedy=f"Give a whole number from {first} on{also}."
        )


def tfdata_knobs(cpus: int) -> tuple[Knob, ...]:
    """What a search tries on a machine with so many CPUs, in the order of likely effect.

    The first ones are those that the figures above are about; the order of the rest was not
    measured. Left alone are options that say what is delivered (samples_per_episode, metadata,
    deterministic), and those whose default is never worse (skip_steps_decoding,
    only_needed_fields). Reading more shards or episodes in turn mixes samples better, never worse,
    so it may be tried.
    """
    in_python = {"mixing.strategy": "python"}
    return (
        # Frames are decoded in the sources then, which must have calls enough of their own.
        _knob(
            "pipeline.emit_encoded_pairs",
            (False,),
            along={"pipeline.post_mix_decode_resize": False, "mixing.parallelism_mode": "full"},
        ),
        _knob("pipeline.transform_parallelism", (AUTOTUNE, 2 * cpus)),
        _knob("prefetch.episode_queue_buffer", (0, 4)),
        _knob("mixing.parallelism_mode", ("sqrt", "full")),
        _knob("prefetch.per_dataset_stream_buffer", (1, 8)),
        _knob("tfds_read.decode_parallelism", (AUTOTUNE, 2)),
        _knob("mixing.strategy", ("choose", "python")),
        _knob("prefetch.final_stream_buffer", (AUTOTUNE, 4)),
        _knob("mixing.per_dataset_private_threadpool_size", (1, cpus)),
        _knob("tfds_read.cycle_length", (4, 16)),
        _knob("tfds_read.interleave_parallelism", (AUTOTUNE,), along={"tfds_read.cycle_length": 4}),
        _knob("tfds_read.block_length", (16,), along={"tfds_read.cycle_length": 4}),
        _knob("pipeline.episode_concurrency", (4,)),
        _knob(
            "pipeline.interleave_parallelism",
            (AUTOTUNE,),
            along={"pipeline.episode_concurrency": 4},
        ),
        _knob("mixing.python_prefetch_threads", (cpus,), needs=in_python),
        _knob("mixing.python_prefetch_queue_size", (4,), needs=in_python),
        _knob("mixing.mix_block_length", (8,), reorders=True),
        _knob("shuffle.global_buffer", (100, 10_000), reorders=True),
    )


def _knob(
    key: str,
    values: tuple[Any, ...],
    along: Mapping[str, Any] | None = None,
    needs: Mapping[str, Any] | None = None,
    *,
    reorders: bool = False,
) -> Knob:
    with_it, needed = ({f"tfdata.{k}": v for k, v in (e or {}).items()} for e in (along, needs))
    return Knob(f"tfdata.{key}", values, with_it, needed, reorders)
