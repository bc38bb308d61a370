"""The real TFDS reads everything that is written, and would have written the same."""

import json

import pytest

from headrace.testing import features as f
from headrace.testing import odd, oxe29
from headrace.testing.writer import encode_example, write_dataset
from tests.testing.conftest import EPISODES, MAX_STEPS, SEED
from tests.testing.read_back import assert_equal, at_step, to_tfds, undecoded_images

pytestmark = [
    pytest.mark.tfds,
    # TensorFlow, TFDS and what they import are not warning-free.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

OXE = list(oxe29.datasets().values())
ODD = list(odd.datasets().values())
BOTH = [(dataset, "oxe_root") for dataset in OXE] + [(dataset, "odd_root") for dataset in ODD]


@pytest.mark.parametrize(("dataset", "root"), BOTH, ids=lambda p: getattr(p, "name", ""))
def test_tfds_reads_every_value_back_and_images_byte_for_byte(tfds, dataset, root, request):
    folder = request.getfixturevalue(root) / dataset.dir / dataset.version
    builder = tfds.builder_from_directory(folder)
    max_steps = MAX_STEPS if isinstance(dataset, oxe29.OxeDataset) else None
    splits = dataset.splits(EPISODES)
    assert set(builder.info.splits) == set(splits)
    for split, shards in splits.items():
        numbers = [number for shard in shards for number in shard]
        read = builder.as_dataset(
            split=split,
            decoders=undecoded_images(tfds, dataset.features),
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        for number, episode in zip(numbers, read, strict=True):
            values = dataset.episode(SEED, number, max_steps)
            for name, feature in dataset.features.features.items():
                where = f"{dataset.name} {split} {number} {name}"
                if not isinstance(feature, f.Steps):
                    assert_equal(feature, values[name], episode[name], where)
                    continue
                steps = list(episode[name])
                assert len(steps) == dataset.steps(SEED, number, max_steps), where
                for t, step in enumerate(steps):
                    ours = at_step(feature.feature, values[name], t)
                    assert_equal(feature.feature, ours, step, f"{where} {t}")


@pytest.mark.parametrize(("dataset", "root"), BOTH, ids=lambda p: getattr(p, "name", ""))
def test_features_json_is_what_tfds_writes_for_the_same_features(
    tfds, dataset, root, request, tmp_path
):
    theirs = to_tfds(tfds, dataset.features)
    theirs.save_config(tmp_path)
    assert f.to_json(dataset.features, "typed") == theirs.to_json()
    expected = json.loads((tmp_path / "features.json").read_text())
    assert f.to_json(dataset.features) == expected
    folder = request.getfixturevalue(root) / dataset.dir / dataset.version
    written = (folder / "features.json").read_text()
    if dataset.dialect == "current":
        assert written == (tmp_path / "features.json").read_text()
    else:
        restored = tfds.features.FeatureConnector.from_config(folder)
        restored.save_config(tmp_path)
        as_read = json.loads((tmp_path / "features.json").read_text())
        if dataset.dialect == "older":  # which knew no Scalar
            expected = json.loads(
                json.dumps(expected).replace("scalar.Scalar", "tensor_feature.Tensor")
            )
        assert as_read == expected


def test_descriptions_are_written_as_tfds_writes_them(tfds, tmp_path):
    features = f.FeaturesDict(
        {
            "steps": f.Steps(f.FeaturesDict({"a": f.Tensor((2,), "float32", doc="an action")})),
            "words": f.Sequence(f.Text(doc="a word"), doc="some words"),
        },
        doc="everything",
    )
    to_tfds(tfds, features).save_config(tmp_path)
    assert f.to_json(features) == json.loads((tmp_path / "features.json").read_text())


def without_float_images(feature):
    """TFDS takes float images only as arrays and encodes them itself, to other bytes."""
    match feature:
        case f.FeaturesDict(features):
            kept = {name: without_float_images(inner) for name, inner in features.items()}
            return f.FeaturesDict({name: inner for name, inner in kept.items() if inner})
        case f.Steps(inner):
            return f.Steps(without_float_images(inner))
        case f.Image(_, "float32"):
            return None
        case _:
            return feature


def selected(feature, values):
    if isinstance(feature, f.Steps):
        return selected(feature.feature, values)
    if isinstance(feature, f.FeaturesDict):
        return {name: selected(inner, values[name]) for name, inner in feature.features.items()}
    return values


@pytest.mark.parametrize("dataset", [*OXE, *ODD], ids=lambda dataset: dataset.name)
def test_an_episode_is_serialised_as_tfds_serialises_it(tfds, dataset):
    import tensorflow as tf

    features = without_float_images(dataset.features)
    theirs = to_tfds(tfds, features)
    for shards in dataset.splits(1).values():
        for number in [number for shard in shards for number in shard]:
            values = selected(features, dataset.episode(SEED, number, 3))
            ours = b"".join(encode_example(features, values, number))
            expected = tf.train.Example.FromString(theirs.serialize_example(values))
            assert tf.train.Example.FromString(ours) == expected


def test_dataset_info_and_file_names_are_those_of_a_dataset_that_tfds_wrote(tfds, tmp_path):
    features = f.FeaturesDict(
        {"steps": f.Steps(f.FeaturesDict({"x": f.Tensor((2,), "int64")})), "id": f.Scalar("int32")}
    )
    episodes = [{"steps": {"x": [[i, -i]] * i}, "id": i} for i in range(5)]

    class TinyThing(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")
        __module__ = "tiny_thing"  # TFDS looks for the sources of a package, in vain

        def _info(self):
            made = to_tfds(tfds, features)
            return tfds.core.DatasetInfo(builder=self, features=made, disable_shuffling=True)

        def _split_generators(self, manager):
            return {"val": self._generate_examples(1), "train": self._generate_examples(5)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, episodes[i]

    builder = TinyThing(data_dir=str(tmp_path / "theirs"))
    builder.download_and_prepare()
    theirs = tmp_path / "theirs" / "tiny_thing" / "1.2.0"
    ours = tmp_path / "ours" / "tiny_thing" / "1.2.0"
    write_dataset(ours, features, {"val": [episodes[:1]], "train": [episodes]})

    assert {file.name for file in ours.iterdir()} == {file.name for file in theirs.iterdir()}
    info, expected = (
        json.loads((folder / "dataset_info.json").read_text()) for folder in (ours, theirs)
    )
    for either in (info, expected):
        for free in ("moduleName", "description", "disableShuffling"):
            either.pop(free, None)
    assert info == expected
    for file in theirs.glob("*.tfrecord*"):  # the order inside a record is free, its size is not
        assert (ours / file.name).stat().st_size == file.stat().st_size
