"""From an episode to its samples: windows of frames and what goes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.measure.baselines.tfdata.described import Described

__all__ = ["Shape", "cut"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What all samples of a mixture have in common."""

    size: tuple[int, int]  #: height and width of frames
    metadata: str  #: none, dataset or full
    action: int  #: width of actions, that of the widest source
    state: int  #: width of states
    seed: int

    @staticmethod
    def of(described: Sequence[Described], size: int, metadata: str, seed: int) -> Shape:
        """As these sources need it."""
        return Shape(
            size=(size, size),
            metadata=metadata,
            action=max((each.action.width for each in described if each.action), default=0),
            state=max((each.state.width for each in described if each.state), default=0),
            seed=seed % (1 << 31),  # what all of TensorFlow's random operations take
        )


def cut(episode: dict[str, Any], source: Described, number: int, shape: Shape, draw: Any) -> Any:
    """The samples of an episode as columns: tensors whose first dimension is samples.

    `number` is the source's, `draw` the episode's place in its source's sequence: starts are drawn
    by it and the seed. `frames` is a tuple, so that encoded ones are not copied here.
    """
    import tensorflow as tf

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
