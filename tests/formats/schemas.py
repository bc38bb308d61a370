"""Schemas as TFDS writes them, for tests."""

_PREFIX = "tensorflow_datasets.core.features"


def tensor(shape=(), dtype="float32", encoding="none"):
    dims = {"dimensions": [str(-1 if n is None else n) for n in shape]} if shape else {}
    return {
        "pythonClassName": f"{_PREFIX}.tensor_feature.Tensor",
        "tensor": {"shape": dims, "dtype": dtype, "encoding": encoding},
    }


def text():
    return {"pythonClassName": f"{_PREFIX}.text_feature.Text", "text": {}}


def image(shape=(4, 6, 3), dtype="uint8", encoding="png"):
    dims = [str(-1 if n is None else n) for n in shape]
    body = {"shape": {"dimensions": dims}, "dtype": dtype, "encodingFormat": encoding}
    return {"pythonClassName": f"{_PREFIX}.image_feature.Image", "image": body}


def features(children, description=None):
    node = {
        "pythonClassName": f"{_PREFIX}.features_dict.FeaturesDict",
        "featuresDict": {"features": children},
    }
    return node | ({"description": description} if description else {})


def sequence(feature, kind="sequence_feature.Sequence", length=-1):
    return {
        "pythonClassName": f"{_PREFIX}.{kind}",
        "sequence": {"feature": feature, "length": str(length)},
    }


def dataset(steps, **others):
    """An RLDS schema: `steps` and whatever else an episode has."""
    return features({"steps": sequence(features(steps), "dataset_feature.Dataset"), **others})


#: One field of every storage that a record can have.
EVERYTHING = dataset(
    {
        "image": image(),
        "action": tensor((2,)),
        "flag": tensor((), "bool"),
        "codes": tensor((3,), "int32"),
        "double": tensor((2,), "float64", "bytes"),
        "zipped": tensor((None, None), "int16", "zlib"),
        "words": sequence(text()),
        "nested": sequence(sequence(tensor((), "float32"))),
        "instruction": text(),
    },
    episode_metadata=features({"path": text(), "sizes": sequence(tensor((), "int64"))}),
)
