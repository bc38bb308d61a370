"""The knobs of the tf.data backend, under the names that users of the original system know.

Every key is `group.knob`, as in their configs below `data.adapter.tf`. A number of parallel calls
is -1 for tf.data's AUTOTUNE and 1 for none. Nothing here imports TensorFlow: what cannot work is
refused before TensorFlow would hang on it or complain in its own words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from headrace.config.values import nearest, shown
from headrace.errors import UsageError

__all__ = [
    "AUTOTUNE",
    "Iteration",
    "Metadata",
    "Mixing",
    "Options",
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
    transform_parallelism: int = AUTOTUNE  #: samples (or episodes) decoded and resized at once
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
    episode_queue_buffer: int = 0  #: episodes of each source


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


@dataclass(frozen=True, slots=True)
class Options:
    """All knobs.

    >>> Options.from_values({"mixing": {"strategy": "choose"}}).mixing.strategy
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
            _check_value(key, value)
        _check_together(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Options:
        """From nested or dotted keys, or both."""
        groups: dict[str, dict[str, Any]] = {}
        for key, value in _dotted(values):
            if key not in _KINDS:
                raise UsageError(
                    f"unknown option {key} of the tf.data backend",
                    remedy=f"{nearest(key, _KINDS)}Options: {', '.join(_KINDS)}.",
                )
            group, _, name = key.rpartition(".")
            groups.setdefault(group, {})[name] = value
        own = groups.pop("", {})
        for group, knobs in groups.items():
            own[group] = _GROUPS[group](**knobs)
        return cls(**own)

    def flat(self) -> dict[str, Any]:
        """Dotted keys to values."""
        return dict(_dotted(dataclasses.asdict(self)))

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


_GROUPS: dict[str, Any] = {
    "tfds_read": TfdsRead,
    "pipeline": Pipeline,
    "shuffle": Shuffle,
    "prefetch": Prefetch,
    "mixing": Mixing,
    "sampling": Sampling,
    "metadata": Metadata,
    "iterator": Iteration,
}


def _kinds() -> dict[str, Any]:
    """Every dotted key with its type."""
    found = {}
    for group, kind in _GROUPS.items():
        found |= {f"{group}.{name}": hint for name, hint in get_type_hints(kind).items()}
    own = {name: hint for name, hint in get_type_hints(Options).items() if name not in _GROUPS}
    return {**found, **own}


_KINDS = _kinds()

#: Lowest values; where it is -1, that stands for AUTOTUNE, and 0 is only allowed as a size.
_LOWEST = {
    "tfds_read.cycle_length": 1,
    "tfds_read.block_length": 1,
    "tfds_read.decode_parallelism": -1,
    "tfds_read.interleave_parallelism": -1,
    "pipeline.episode_concurrency": 1,
    "pipeline.transform_parallelism": -1,
    "pipeline.interleave_parallelism": -1,
    "prefetch.final_stream_buffer": -1,
    "prefetch.per_dataset_stream_buffer": -1,
    "prefetch.episode_queue_buffer": -1,
    "mixing.mix_block_length": 1,
    "mixing.selector_run_length": 1,
    "mixing.python_prefetch_queue_size": 1,
    "mixing.python_prefetch_min_ready_datasets": 1,
}


def _dotted(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{key}.")
        elif key in _GROUPS:
            raise UsageError(
                f"{key} is {shown(value)}, not a mapping", remedy=f"Write {key}.knob: value."
            )
        else:
            yield key, value


def _check_value(key: str, value: Any) -> None:
    """One knob by itself."""
    kind = _KINDS[key]
    allowed = [each for part in (kind, *get_args(kind)) for each in get_args(part)]
    choices = [each for each in (*get_args(kind), *allowed) if isinstance(each, str)]
    if value is None and type(None) in get_args(kind):
        return
    if choices:
        if value not in choices:
            raise UsageError(
                f"{key} is {shown(value)}",
                remedy=f"{nearest(str(value), choices)}Give one of {', '.join(dict.fromkeys(choices))}.",
            )
    elif kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{key} is {shown(value)}", remedy="Give true or false.")
    elif kind is str:
        if not isinstance(value, str) or not value:
            raise UsageError(f"{key} is {shown(value)}", remedy="Give a text.")
    else:
        lowest = _LOWEST.get(key, 0)
        wrong = isinstance(value, bool) or not isinstance(value, int) or value < lowest
        if wrong or (value == 0 and lowest == AUTOTUNE and key.endswith("parallelism")):
            also = ", or -1 for AUTOTUNE" if lowest == AUTOTUNE else ""
            first = 1 if key.endswith("parallelism") else max(0, lowest)
            raise UsageError(
                f"{key} is {shown(value)}", remedy=f"Give a whole number from {first} on{also}."
            )


def _check_together(options: Options) -> None:
    """What TensorFlow refuses late or not at all."""
    read, pipeline, mixing = options.tfds_read, options.pipeline, options.mixing
    for calls, length, name, limit in (
        (read.interleave_parallelism, read.cycle_length, "tfds_read.interleave_parallelism",
         "tfds_read.cycle_length"),
        (pipeline.interleave_parallelism, pipeline.episode_concurrency,
         "pipeline.interleave_parallelism", "pipeline.episode_concurrency"),
    ):
        if calls > length:
            raise UsageError(
                f"{name} is {calls}, above {limit}, which is {length}: tf.data cannot interleave "
                "more at once than it has open",
                remedy=f"Raise {limit} to {calls}, or lower {name} to {length}.",
            )
    if pipeline.post_mix_decode_resize and not pipeline.emit_encoded_pairs:
        raise UsageError(
            "pipeline.post_mix_decode_resize is True and pipeline.emit_encoded_pairs is False: "
            "nothing encoded reaches the mixture",
            remedy="Set pipeline.post_mix_decode_resize to False, or emit encoded pairs.",
        )
    if mixing.selector_run_length > 1 and mixing.strategy != "choose":
        raise UsageError(
            f"mixing.selector_run_length is {mixing.selector_run_length}, but mixing.strategy is "
            f"{mixing.strategy!r}, which has no selector",
            remedy="Set mixing.strategy to choose, or use mixing.mix_block_length.",
        )
