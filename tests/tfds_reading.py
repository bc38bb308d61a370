"""Reading and writing datasets with the real TensorFlow Datasets, for comparison."""

import os

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def builder(folder):
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(str(folder))


def episodes(folder, split, decode):
    """Every episode of a split in file order: (episode fields, list of steps), keys flattened."""
    import tensorflow_datasets as tfds

    source = builder(folder)
    dataset = source.as_dataset(
        split=split,
        shuffle_files=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
        decoders=None if decode else _skip_images(source.info.features),
    )
    for episode in dataset:
        steps = episode.pop("steps")
        yield _flat(episode), [_flat(step) for step in steps]


def _skip_images(feature):
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.Image):
        return tfds.decode.SkipDecoding()
    if isinstance(feature, tfds.features.FeaturesDict):
        found = {name: _skip_images(child) for name, child in feature.items()}
        return {name: child for name, child in found.items() if child} or None
    if isinstance(feature, tfds.features.Sequence):
        return _skip_images(feature.feature)
    return None


def _flat(tree, path=""):
    if isinstance(tree, dict):
        found = {}
        for name, child in tree.items():
            found |= _flat(child, f"{path}/{name}" if path else name)
        return found
    return {path: tree}


def plain(value):
    """A tensor, array or nested list as something that compares exactly: type, shape and bytes."""
    if hasattr(value, "to_list"):  # a ragged tensor
        return _rows(value.to_list())
    if isinstance(value, list):
        return [plain(one) for one in value]
    array = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(array, bytes):
        return array
    array = np.asarray(array)
    if array.dtype == object:
        return array.tolist()
    return (array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())


def plain_ragged(value):
    """What headrace gives for a ragged field, as nested lists of numbers or bytes."""
    if isinstance(value, list):
        return [plain_ragged(one) for one in value]
    return _rows(value.tolist())


def _rows(value):
    return [_rows(one) for one in value] if isinstance(value, list) else value


# -- writing with TFDS ---------------------------------------------------------------------------


def write_with_tfds(root, dataset, seed, max_steps=None):
    """Let TFDS itself write a synthetic dataset from its values; the version folder."""
    import tensorflow_datasets as tfds

    layout = dataset.splits(3)
    features = _to_tfds(dataset.features)

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=features)

    def split_generators(self, manager):
        return {split: self._generate_examples(shards) for split, shards in layout.items()}

    def generate(self, shards):
        for number in (number for shard in shards for number in shard):
            yield number, _rows_of(dataset.features, dataset.episode(seed, number, max_steps))

    name = f"{dataset.dir}_by_tfds"
    methods = {
        "VERSION": tfds.core.Version("1.0.0"),
        "name": name,
        "_info": info,
        "_split_generators": split_generators,
        "_generate_examples": generate,
        "__module__": __name__,
    }
    kind = type(name, (tfds.core.GeneratorBasedBuilder,), methods)
    made = kind(data_dir=str(root))
    made.download_and_prepare(
        download_config=tfds.download.DownloadConfig(register_checksums=False)
    )
    return root / name / "1.0.0"


def _to_tfds(feature):
    import tensorflow_datasets as tfds

    from headrace.testing import features as f

    match feature:
        case f.FeaturesDict(children):
            return tfds.features.FeaturesDict(
                {name: _to_tfds(child) for name, child in children.items()}
            )
        case f.Steps(inner):
            return tfds.features.Dataset(_to_tfds(inner))
        case f.Sequence(inner):
            return tfds.features.Sequence(_to_tfds(inner))
        case f.Text():
            return tfds.features.Text()
        case f.Image(shape, dtype, encoding):
            return tfds.features.Image(shape=shape, dtype=_dtype(dtype), encoding_format=encoding)
        case f.Scalar(dtype):
            return tfds.features.Scalar(dtype=_dtype(dtype))
        case f.Tensor(shape, dtype, encoding):
            return tfds.features.Tensor(shape=shape, dtype=_dtype(dtype), encoding=encoding)
    raise AssertionError(feature)


def _dtype(name):
    return np.object_ if name == "string" else np.dtype(name).type


def _rows_of(feature, value):
    """Values as TFDS wants them: steps and sequences of dicts row by row, not column by column."""
    from headrace.testing import features as f

    match feature:
        case f.FeaturesDict(children):
            return {name: _rows_of(child, value[name]) for name, child in children.items()}
        case f.Steps(inner) | f.Sequence(inner):
            return [_rows_of(inner, _row(inner, value, t)) for t in range(_count(inner, value))]
        case f.Image(dtype="float32"):
            from headrace.decoding.frame import decode_image

            return decode_image(value, dtype="float32")
        case f.Scalar(dtype) | f.Tensor(dtype=dtype) if dtype != "string":
            return np.asarray(value, dtype)
    return value


def _row(feature, value, t):
    from headrace.testing import features as f

    if isinstance(feature, f.FeaturesDict):
        return {name: _row(child, value[name], t) for name, child in feature.features.items()}
    if isinstance(feature, f.Sequence):
        return _row(feature.feature, value, t)
    return value[t]


def _count(feature, value):
    from headrace.testing import features as f

    if isinstance(feature, f.FeaturesDict):
        name, child = next(iter(feature.features.items()))
        return _count(child, value[name])
    if isinstance(feature, f.Sequence):
        return _count(feature.feature, value)
    return len(value)
