import json

import pytest

from headrace.errors import DatasetError, UnknownFieldError
from headrace.formats.features import parse_features, read_features
from tests.formats.schemas import EVERYTHING, dataset, features, image, sequence, tensor, text


def field(tree, key):
    return next(f for f in parse_features(tree).fields if f.key == key)


def test_nested_features_are_flattened_as_tfds_names_them():
    schema = parse_features(EVERYTHING)
    assert [f.key for f in schema.fields] == [
        "episode_metadata/path",
        "episode_metadata/sizes",
        "steps/action",
        "steps/codes",
        "steps/double",
        "steps/flag",
        "steps/image",
        "steps/instruction",
        "steps/nested",
        "steps/words",
        "steps/zipped",
    ]


def test_step_fields_are_distinguished_from_episode_fields():
    assert field(EVERYTHING, "steps/words").per_step
    assert field(EVERYTHING, "steps/words").nesting == 1
    assert not field(EVERYTHING, "episode_metadata/sizes").per_step
    assert field(EVERYTHING, "steps/nested").nesting == 2
    assert not field(EVERYTHING, "steps/action").ragged


def test_unknown_dimensions_are_none():
    assert field(EVERYTHING, "steps/zipped").shape == (None, None)
    assert field(EVERYTHING, "steps/zipped").stores_shape


def test_keys_may_contain_slashes():
    tree = dataset({"action": features({"future/xyz_residual": tensor((30,))})})
    assert field(tree, "steps/action/future/xyz_residual").shape == (30,)


LEGACY = {
    "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "content": {
        "steps": {
            "type": "tensorflow_datasets.core.features.dataset_feature.Dataset",
            "content": {
                "feature": {
                    "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
                    "content": {
                        "image": {
                            "type": "tensorflow_datasets.core.features.image_feature.Image",
                            "content": {
                                "shape": [4, 6, 3],
                                "dtype": "uint8",
                                "encoding_format": "png",
                            },
                        },
                        "action": {
                            "type": "tensorflow_datasets.core.features.tensor_feature.Tensor",
                            "content": {"shape": [2], "dtype": "float32", "encoding": "none"},
                        },
                        "open": {
                            "type": "tensorflow_datasets.core.features.feature.Tensor",
                            "content": {"shape": [None, 2], "dtype": "bool", "encoding": "zlib"},
                        },
                        "said": {
                            "type": "tensorflow_datasets.core.features.text_feature.Text",
                            "content": {},
                        },
                        "proto": {
                            "type": "tensorflow_datasets.core.features.tensor_feature.Tensor",
                            "proto_cls": "tensorflow_datasets.TensorFeature",
                            "content": '{"shape": {"dimensions": ["-1"]}, "dtype": "int64"}',
                        },
                    },
                },
                "length": None,
            },
        }
    },
}


def test_the_older_dialect_gives_the_same_schema():
    modern = dataset(
        {
            "image": image(),
            "action": tensor((2,)),
            "open": tensor((None, 2), "bool", "zlib"),
            "said": text(),
            "proto": tensor((None,), "int64"),
        }
    )
    assert parse_features(LEGACY) == parse_features(modern)


def test_a_feature_class_that_the_dataset_defines_is_read_by_its_body():
    tree = dataset({"x": tensor((2,)) | {"pythonClassName": "my.project.Joints"}})
    assert field(tree, "steps/x").kind == "tensor"


def test_an_unsupported_feature_does_not_hide_the_others():
    tree = dataset({"x": {"pythonClassName": "a.Audio", "audio": {}}, "y": tensor((2,))})
    assert [f.kind for f in parse_features(tree).fields] == ["unsupported", "tensor"]


def test_a_field_is_found_by_full_key_step_key_camera_name_and_unique_end():
    tree = dataset({"observation": features({"image": image(), "state": tensor((7,))})})
    schema = parse_features(tree)
    for name in ("steps/observation/image", "observation/image", "image"):
        assert schema.find(name, among="camera").key == "steps/observation/image"


def test_an_unknown_camera_lists_the_known_ones():
    tree = dataset({"observation": features({"image": image(), "wrist": image()})})
    with pytest.raises(UnknownFieldError, match=r"'top'.*observation/image, observation/wrist"):
        parse_features(tree).find("top", among="camera")


def test_an_ambiguous_name_lists_the_candidates():
    tree = dataset({"a": features({"x": tensor()}), "b": features({"x": tensor()})})
    with pytest.raises(UnknownFieldError, match="ambiguous.*a/x, b/x"):
        parse_features(tree).find("x")


def test_a_dataset_without_steps_is_not_an_rlds_dataset():
    with pytest.raises(DatasetError, match="`steps`"):
        parse_features(features({"image": image(), "label": tensor()}))


@pytest.mark.parametrize(
    "tree",
    [
        {},
        [],
        None,
        {"pythonClassName": "FeaturesDict", "featuresDict": {"features": 5}},
        {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": {"steps": {}}}},
        {"type": "x.FeaturesDict", "content": "{"},
        dataset({"x": tensor(("seven",))}),
    ],
)
def test_an_invalid_schema_is_one_clear_error(tree):
    with pytest.raises(DatasetError, match=r"features\.json"):
        parse_features(tree)


def test_endless_nesting_is_refused():
    tree = tensor()
    for _ in range(100):
        tree = sequence(tree)
    with pytest.raises(DatasetError, match="deep"):
        parse_features(features({"steps": tree}))


def test_a_file_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "features.json"
    path.write_text("{nonsense")
    with pytest.raises(DatasetError, match="not JSON") as caught:
        read_features(path)
    assert caught.value.file == str(path)


def test_a_file_of_brackets_does_not_exhaust_the_stack(tmp_path):
    path = tmp_path / "features.json"
    path.write_text("[" * 200_000)
    with pytest.raises(DatasetError, match="not JSON"):
        read_features(path)


def test_a_description_of_a_feature_is_ignored():
    tree = json.loads(json.dumps(dataset({"x": tensor((2,)) | {"description": "the arm"}})))
    assert field(tree, "steps/x").shape == (2,)
