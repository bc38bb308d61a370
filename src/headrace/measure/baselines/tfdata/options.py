"""All knobs together: read from nested or dotted keys, and checked.

Nothing here imports TensorFlow: what cannot work is refused before TensorFlow would hang on it or
complain in its own words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from headrace.config.typed import nearest, shown
from headrace.errors import UsageError
from headrace.measure.baselines.tfdata.knobs import (
    AUTOTUNE,
    Iteration,
    Metadata,
    Mixing,
    Pipeline,
    Prefetch,
    Sampling,
    Shuffle,
    TfdsRead,
)

__all__ = ["Options"]


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
    found: dict[str, Any] = {}
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
            known = ", ".join(dict.fromkeys(choices))
            raise UsageError(
                f"{key} is {shown(value)}",
                remedy=f"{nearest(str(value), choices)}Give one of {known}.",
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
        calls = key.endswith("parallelism") and key != "pipeline.transform_parallelism"
        if wrong or (value == 0 and calls):
            also = ", or -1 for AUTOTUNE" if lowest == AUTOTUNE else ""
            first = 1 if calls else max(0, lowest)
            raise UsageError(
                f"{key} is {shown(value)}", remedy=f"Give a whole number from {first} on{also}."
            )


def _check_together(options: Options) -> None:
    """What TensorFlow refuses late or not at all."""
    read, pipeline, mixing = options.tfds_read, options.pipeline, options.mixing
    for calls, length, name, limit in (
        (
            read.interleave_parallelism,
            read.cycle_length,
            "tfds_read.interleave_parallelism",
            "tfds_read.cycle_length",
        ),
        (
            pipeline.interleave_parallelism,
            pipeline.episode_concurrency,
            "pipeline.interleave_parallelism",
            "pipeline.episode_concurrency",
        ),
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
