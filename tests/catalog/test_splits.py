"""Split expressions agree with the real TensorFlow Datasets, errors included."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.catalog.splits import SplitPart, resolve_split
from headrace.errors import SplitError, UsageError

Lengths = Mapping[str, Sequence[int]]
Chosen = list[tuple[str, int]]

TOY: Lengths = {"train": [7, 0, 5, 8], "test": [1], "empty": [0], "void": [], "big": [130, 120]}


def with_tensorflow(test: Any) -> Any:
    """Marks a test that imports TensorFlow, which may warn of its own deprecations."""
    quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")
    return pytest.mark.tfds(quiet(test))


def chosen(parts: Sequence[SplitPart]) -> Chosen:
    return [(part.split, episode) for part in parts for episode in range(part.start, part.stop)]


def ours(expression: str, lengths: Lengths) -> Chosen | str:
    try:
        return chosen(resolve_split(expression, lengths))
    except SplitError:
        return "error"


class Oracle:
    """What TFDS selects, by its own instructions to read files."""

    def __init__(self) -> None:
        from tensorflow_datasets.core import naming, splits

        self.splits = splits
        self.naming = naming
        self.template = naming.ShardedFileTemplate(
            data_dir="/nowhere", dataset_name="toy", filetype_suffix="tfrecord"
        )

    def infos(self, lengths: Lengths) -> Any:
        return self.splits.SplitDict(
            [
                self.splits.SplitInfo(
                    name=name,
                    shard_lengths=list(shards),
                    num_bytes=0,
                    filename_template=self.template.replace(split=name),
                )
                for name, shards in lengths.items()
            ]
        )

    def __call__(self, expression: Any, lengths: Lengths) -> Chosen | str:
        infos = self.infos(lengths)
        try:
            if self.is_reversed(expression, lengths):
                return "error"  # the one corner that is not followed: see the module
            instructions = infos[expression].file_instructions
        except (ValueError, KeyError, NotImplementedError, RecursionError):
            return "error"
        found: Chosen = []
        for instruction in instructions:
            name = self.naming.FilenameInfo.from_str(Path(instruction.filename).name)
            first = sum(lengths[name.split][: name.shard_index]) + instruction.skip
            found += [(name.split, first + number) for number in range(instruction.take)]
        return found or "error"  # "corresponds to no data", when it is read

    def is_reversed(self, expression: Any, lengths: Lengths) -> bool:
        infos = self.infos(lengths)
        return any(
            (part.from_ or 0) > (sum(lengths[part.splitname]) if part.to is None else part.to)
            for part in self.splits._make_absolute_instructions(infos.values(), expression)
        )


@pytest.fixture(scope="module")
def tfds_choice() -> Oracle:
    return Oracle()


# ----------------------------------------------------------------- generated expressions

numbers = st.one_of(
    st.integers(-130, 130).map(str),
    st.integers(-12, 12).map(str),
    st.floats(-101, 101).map(lambda value: f"{value:.3f}"),
    st.sampled_from(["0", "-0", "00", "1_0", "_1", "1_", ".5", "5.", ".", "--1", "1e1", "٣", "+1"]),
)
bounds = st.one_of(
    st.just(""), st.tuples(numbers, st.sampled_from(["", "%", "%", "shard"])).map("".join)
)
slices = st.one_of(
    st.just(""),
    st.tuples(bounds, bounds).map(lambda pair: f"[{pair[0]}:{pair[1]}]"),
    bounds.map(lambda bound: f"[{bound}]"),
    st.sampled_from(["[", "[]", "[:]", "[:1:2]", "[: 2]", "[abc]", "]", "[:2]x", "[:2]\n"]),
)
names = st.sampled_from(["train", "train", "train", "test", "val-2", "all", "nope", "", "Train"])
parts = st.tuples(names, slices).map("".join)
expressions = st.lists(parts, min_size=1, max_size=3).flatmap(
    lambda texts: st.sampled_from(["+", " + ", "+\t", "\n+ "]).map(lambda plus: plus.join(texts))
)
shards = st.one_of(
    st.lists(st.integers(0, 30), max_size=6),
    st.sampled_from([[0], [1], [100], [0, 0, 3, 0], [250], [99, 1, 100]]),
)
datasets = st.fixed_dictionaries({"train": shards}, optional={"test": shards, "val-2": shards})


@with_tensorflow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=expressions, lengths=datasets)
def test_any_expression_selects_what_tfds_selects(
    expression: str, lengths: Lengths, tfds_choice: Oracle
) -> None:
    assert ours(expression, lengths) == tfds_choice(expression, lengths)


def well_formed(seed: int, count: int) -> Iterator[tuple[str, Lengths]]:
    """Expressions that mostly select something, over shards of many shapes."""
    rng = random.Random(seed)
    for _ in range(count):
        lengths = {
            name: [rng.choice([0, 1, 3, 10, 47, 199]) for _ in range(rng.randint(1, 5))]
            for name in ["train", "test"]
        }
        texts = []
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(["train", "test"])
            unit, top = rng.choice(
                [("%", 100), ("", sum(lengths[name])), ("shard", len(lengths[name]) + 1)]
            )
            low, high = sorted(rng.randint(0, top) for _ in range(2))
            start = rng.choice(["", f"{low}{unit}", f"{low - top}{unit}"])
            stop = rng.choice(["", f"{high}{unit}", f"{high - top}{unit}", f"{high}"])
            single = unit == "shard" and rng.random() < 0.3
            texts.append(f"{name}[{low}shard]" if single else f"{name}[{start}:{stop}]")
        yield "+".join(texts), lengths


@with_tensorflow
def test_many_well_formed_expressions_select_what_tfds_selects(tfds_choice: Oracle) -> None:
    selecting = 0
    for expression, lengths in well_formed(seed=0, count=1000):
        expected = tfds_choice(expression, lengths)
        assert ours(expression, lengths) == expected, (expression, lengths)
        selecting += expected != "error"
    assert selecting > 500


@with_tensorflow
def test_whole_percents_with_dropped_remainder_equal_read_instructions(
    tfds_choice: Oracle,
) -> None:
    whole = [None, *range(-100, 101, 7), 0, 1, 99, 100]
    for length in [99, 100, 101, 199, 250, 12345]:
        lengths = {"train": [length // 3, length - length // 3]}
        for start, stop in zip(whole, random.Random(length).sample(whole, len(whole)), strict=True):
            if start is None and stop is None:
                continue
            instruction = tfds_choice.splits.ReadInstruction(
                "train", from_=start, to=stop, unit="%", rounding="pct1_dropremainder"
            )
            ends = ["" if end is None else f"{end}%" for end in (start, stop)]
            try:
                found: Chosen | str = chosen(
                    resolve_split(
                        f"train[{ends[0]}:{ends[1]}]", lengths, rounding="pct1_dropremainder"
                    )
                )
            except SplitError:
                found = "error"
            assert found == tfds_choice(instruction, lengths), (start, stop, length)


# ----------------------------------------------------------------- a dataset on disk

READ = [
    *("train", "test", "all", "all+train[:2]", "train + test", "train[:2]+train[:2]"),
    *("train[:90%]", "train[90%:]", "train[10:20]", "train[-5:]", "train[:50%]+train[90%:]"),
    *("train[10%:20]", "train[10:20%]", "train[:12.5%]", "train[:-12.5%]", "train[1_0:]"),
    *("train[1shard]", "train[:2shard]", "train[-1shard]", "train[:0shard]", "train[-6shard]"),
    *("train[:-6shard]", "train[:9shard]", "train[9shard:]", "train[3:3]", "train[3:3]+test"),
    *("train[:1%]", "train[:]", "train[5]", "train[:21]", "train[-21:]", "train[:101%]"),
    *("empty", "void", "void[:0%]", "empty+test", "all[:1]", "nope", "big[33%:66%]", "train\n"),
]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import numpy as np
    import tensorflow as tf
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("toy") / "toy" / "1.0.0"
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict({"split": tfds.features.Text(), "number": np.int64})
    features.save_config(folder)
    for name, shards in TOY.items():
        number = 0
        for shard, length in enumerate(shards):
            file = folder / f"toy-{name}.tfrecord-{shard:05d}-of-{len(shards):05d}"
            with tf.io.TFRecordWriter(str(file)) as writer:
                for _ in range(length):
                    example = {"split": name, "number": number}
                    writer.write(features.serialize_example(features.encode_example(example)))
                    number += 1
    infos = [{"name": name, "shardLengths": list(map(str, TOY[name]))} for name in TOY]
    info = {"name": "toy", "version": "1.0.0", "fileFormat": "tfrecord", "splits": infos}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return tfds.builder_from_directory(folder)


def read(builder: Any, expression: str) -> Chosen | str:
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    try:
        dataset = builder.as_dataset(split=expression, read_config=config)
        examples = list(dataset.as_numpy_iterator())
    except Exception as error:
        return f"error {type(error).__name__}"
    return [(example["split"].decode(), int(example["number"])) for example in examples]


@with_tensorflow
def test_what_tfds_reads_from_disk_is_what_its_instructions_say_and_what_we_select(
    builder: Any, tfds_choice: Oracle
) -> None:
    for expression in READ:
        found = read(builder, expression)
        found = "error" if isinstance(found, str) else found
        assert found == tfds_choice(expression, TOY) == ours(expression, TOY), expression


@with_tensorflow
@pytest.mark.parametrize(
    ("expression", "tfds_reads"),
    [
        ("train[15:3]", "error ValueError"),
        ("train[15:3]+test", [("test", 0)]),
        ("train[5:4]", [("train", 5), ("train", 6)]),
        ("train[5:2]", "error FailedPreconditionError"),
    ],
)
def test_reversed_slices_are_refused_because_tfds_gives_what_the_shards_happen_to_give(
    builder: Any, expression: str, tfds_reads: Chosen | str
) -> None:
    assert read(builder, expression) == tfds_reads
    with pytest.raises(SplitError, match=re.escape(repr(expression))):
        resolve_split(expression, TOY)


# ----------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("expression", "reasons", "example"),
    [
        ("nope", ["'nope'"], "'big'"),
        ("train[:1%]", ["train: 0 to 0 of 20"], "'big[:90%]'"),
        ("train[5]", ["[5]"], "'big[5:6]'"),
        ("train[5:4]", ["episode 5", "stop 4"], "'big[10%:20%]'"),
        ("train[:]", ["[:]"], "'big'"),
        ("train[:1:2]", ["[:1:2]", "[start:stop]"], "'big[:90%]'"),
        ("train[", ["'train['", "name[start:stop]"], "'big[:90%]'"),
        ("train[:1.5]", ["'1.5'", "whole number"], "'big[:90%]'"),
        ("train[:..%]", ["'..'", "number"], "'big[:90%]'"),
        ("train[:101%]", ["101%", "-100% to 100%"], "'big[:90%]'"),
        ("train[:21]", ["21", "20 episodes of 'train'"], "'big[:90%]'"),
        ("all[:1]", ["'all'"], "'big[:90%]' or 'all'"),
    ],
)
def test_a_refusal_names_expression_reason_known_splits_and_the_right_form(
    expression: str, reasons: list[str], example: str
) -> None:
    with pytest.raises(SplitError) as caught:
        resolve_split(expression, TOY, dataset="toy/1.0.0")
    error = caught.value
    assert repr(expression) in error.problem
    assert all(reason in error.problem for reason in reasons)
    assert error.dataset == "toy/1.0.0"
    assert error.remedy
    assert "train 20, test 1, empty 0, void 0, big 250" in error.remedy
    assert example in error.remedy


def test_dropping_the_remainder_needs_a_hundred_episodes_and_whole_percents() -> None:
    with pytest.raises(SplitError, match=r"\b100\b"):
        resolve_split("train[:10%]", TOY, rounding="pct1_dropremainder")
    with pytest.raises(SplitError, match=r"10\.5%"):
        resolve_split("big[:10.5%]", TOY, rounding="pct1_dropremainder")


def test_an_unknown_rounding_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'nearest'"):
        resolve_split("train", TOY, rounding="nearest")  # type: ignore[arg-type]


def test_a_dataset_without_splits_says_so() -> None:
    with pytest.raises(SplitError, match="splits"):
        resolve_split("train", {})


@pytest.mark.parametrize("lengths", [{"all": [3]}, {"train": [1], "all": [3]}, {"a.b": [3]}])
def test_all_is_refused_where_a_split_cannot_be_named(lengths: Lengths) -> None:
    with pytest.raises(SplitError, match="'all'"):
        resolve_split("all", lengths)
