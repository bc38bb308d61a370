"""Episodes of one source as TFDS reads them, as the tensors that samples are made of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from headrace.formats.features import STEPS, Field
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.baselines.tfdata.sources import SourceSpec

_ALL_STEPS = 1 << 40  # more than any episode has: a batch of it is the episode


class EpisodeReader:
    """Reads a source's split and turns what TFDS gives into plain tensors."""

    def __init__(self, source: SourceSpec, options: Options, sources: int, *, full: bool) -> None:
        self._source, self._options, self._full = source, options, full
        self._sources = sources
        self._builder = tfds.builder_from_directory(source.folder)
        self._features = self._builder.info.features
        self._fields = [source.camera]  # the camera is the first
        if full:
            numbers = [each.field for each in (source.action, source.state) if each]
            self._fields += numbers + ([source.language] if source.language else [])
        self._shards = source.shards or tuple(
            name for split in self._builder.info.splits.values() for name in split.filenames
        )

    @property
    def gives_pixels(self) -> bool:
        """Whether TFDS decodes the frames: nothing tells it not to."""
        pipeline, read = self._options.pipeline, self._options.tfds_read
        return not (pipeline.emit_encoded_pairs or read.skip_steps_decoding)

    def dataset(self, *, shuffle_files: bool, seed: int) -> Any:
        """The episodes of the split, one pass, as TFDS gives them."""
        read = self._options.tfds_read
        shards = self._options.calls_per_source(read.interleave_parallelism, self._sources)
        config = tfds.ReadConfig(
            add_tfds_id=True,
            # A dataset that fits into memory would be kept there after the first pass, unlike
            # those that one trains on.
            try_autocache=False,
            skip_prefetch=True,
            enable_ordering_guard=False,
            shuffle_seed=seed,
            interleave_cycle_length=read.cycle_length,
            interleave_block_length=read.block_length,
            num_parallel_calls_for_interleave_files=None if shards == 1 else shards,
            num_parallel_calls_for_decode=self._options.calls_per_source(
                read.decode_parallelism, self._sources
            ),
        )
        with warnings.catch_warnings():
            # TFDS asks for an order also where shards are read one after the other.
            warnings.filterwarnings("ignore", message="The `deterministic` argument")
            return self._builder.as_dataset(
                split=self._source.split,
                shuffle_files=shuffle_files,
                read_config=config,
                decoders=self._decoders(),
            )

    def steps(self, episode: Any) -> dict[str, Any]:
        """The fields of all steps that samples need, by their keys, where steps came undecoded."""
        found = {field.key: _get(episode[STEPS], self._path(field)) for field in self._fields}
        for field in self._fields[1:]:
            if field.encoding:  # what TFDS would have undone, had it not been told to skip steps
                feature = _get(self._features[STEPS].feature, self._path(field))
                found[field.key] = feature.decode_batch_example(found[field.key])
        return found

    def decoded_steps(self, episode: Any) -> Any:
        """The same as a dataset of one element, where TFDS decodes step by step."""
        # Other fields may be of different shapes from step to step: they do not go into a tensor.
        chosen = episode[STEPS].map(
            lambda step: {field.key: _get(step, self._path(field)) for field in self._fields}
        )
        # `take` keeps tf.data from fusing map and batch, which would map so many steps.
        return chosen.take(_ALL_STEPS).batch(_ALL_STEPS)

    def tensors(self, episode: Any, steps: dict[str, Any]) -> dict[str, Any]:
        """Frames, numbers and texts of all steps, and what the episode says of itself."""
        source = self._source
        frames = steps[source.camera.key]
        found = {"frames": frames}
        if not self._full:
            return found
        for name, numbers in (("action", source.action), ("state", source.state)):
            if numbers:
                values = tf.cast(steps[numbers.field.key], tf.float32)
                flat = tf.reshape(values, [tf.shape(frames)[0], numbers.field.width])
                found[name] = flat[:, : numbers.width]
        if source.language:
            values = steps[source.language.key]
            found["language"] = values if source.language.is_string else _as_text(values)
        found["robot"] = tf.constant("")
        if source.robot:
            found["robot"] = _get(episode, _path_of(self._features, source.robot))
        found["episode_id"] = self._episode_id(episode["tfds_id"])
        return found

    def _path(self, field: Field) -> tuple[str, ...]:
        """The path of a step's field below `steps`."""
        return _path_of(self._features[STEPS].feature, field.name)

    def _episode_id(self, tfds_id: Any) -> Any:
        """TFDS's `file__record` as the loader's number: shard << 32 | record."""
        file = tf.strings.regex_replace(tfds_id, r"__\d+$", "")
        record = tf.strings.to_number(tf.strings.regex_replace(tfds_id, r"^.*__", ""), tf.int64)
        shard = tf.where(tf.equal(tf.constant(self._shards), file))[0, 0]
        return shard * (1 << 32) + record

    def _decoders(self) -> Any:
        read, skip = self._options.tfds_read, tfds.decode.SkipDecoding()
        decoders: Any = {STEPS: skip}
        if not read.skip_steps_decoding:
            camera = (STEPS, *self._path(self._source.camera))
            decoders = None if self.gives_pixels else _put({}, camera, skip)
        if not read.only_needed_fields:
            return decoders
        features = self._needed_features()

        class Needed(tfds.decode.PartialDecoding):  # type: ignore[misc]
            # TFDS's own cannot select inside a `Dataset` feature.
            def extract_features(self, _: Any) -> Any:
                return features

        return Needed({}, decoders=decoders)

    def _needed_features(self) -> Any:
        """The features that samples are made of, in TFDS's terms."""
        source, inner = self._source, self._features[STEPS].feature
        steps: dict[str, Any] = {}
        for field in self._fields:
            _put(steps, self._path(field), _get(inner, self._path(field)))
        needed: dict[str, Any] = {STEPS: tfds.features.Dataset(steps)}
        if self._full and source.robot:
            path = _path_of(self._features, source.robot)
            _put(needed, path, _get(self._features, path))
        return tfds.features.FeaturesDict(needed)


def _as_text(codes: Any) -> Any:
    """Unicode code points of every step as UTF-8; zeros are padding."""
    codes = tf.cast(codes, tf.int32)
    known = tf.ragged.boolean_mask(codes, (codes > 0) & (codes < 0x110000))
    return tf.strings.unicode_encode(known, "UTF-8", errors="replace")


def _path_of(features: Any, key: str) -> tuple[str, ...]:
    """The path of a flattened key in TFDS's nested features, whose names may contain slashes.

    >>> _path_of({"a": {"b/c": 1, "b": {"d": 2}}}, "a/b/c")
    ('a', 'b/c')
    """
    for name in features:
        if name == key:
            return (name,)
        if key.startswith(f"{name}/") and hasattr(features[name], "keys"):
            try:
                return (name, *_path_of(features[name], key[len(name) + 1 :]))
            except KeyError:
                continue
    raise KeyError(key)


def _get(tree: Any, path: Sequence[str]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Place a value at a path; the tree itself.

    >>> _put({"a": {"b": 1}}, ["a", "c"], 2)
    {'a': {'b': 1, 'c': 2}}
    """
    inner = tree
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return tree
