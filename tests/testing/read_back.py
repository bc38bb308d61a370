"""What TFDS makes of a dataset, compared with the values that were handed to the writer."""

import cv2
import numpy as np

from headrace.testing import features as f


def to_tfds(tfds, feature):
    """The same feature in TFDS's own classes."""
    dtype = getattr(feature, "dtype", None)
    kind = np.str_ if dtype == "string" else dtype and np.dtype(dtype).type
    doc = feature.doc or None
    match feature:
        case f.Tensor(shape, _, encoding):
            return tfds.features.Tensor(shape=shape, dtype=kind, encoding=encoding, doc=doc)
        case f.Scalar():
            return tfds.features.Scalar(kind, doc=doc)
        case f.Text():
            return tfds.features.Text(doc=doc)
        case f.Image(shape, _, encoding):
            return tfds.features.Image(shape=shape, dtype=kind, encoding_format=encoding, doc=doc)
        case f.FeaturesDict(inner):
            made = {name: to_tfds(tfds, one) for name, one in inner.items()}
            return tfds.features.FeaturesDict(made, doc=doc)
        case f.Sequence(inner):
            return tfds.features.Sequence(to_tfds(tfds, inner), doc=doc)
        case f.Steps(inner):
            return tfds.features.Dataset(to_tfds(tfds, inner), doc=doc)


def undecoded_images(tfds, feature):
    """TFDS decoders that leave every image encoded, except in sequences, where TFDS cannot."""
    match feature:
        case f.Image():
            return tfds.decode.SkipDecoding()
        case f.FeaturesDict(features):
            found = {name: undecoded_images(tfds, inner) for name, inner in features.items()}
            return {name: inner for name, inner in found.items() if inner} or None
        case f.Steps(inner):
            return undecoded_images(tfds, inner)
        case _:
            return None


def decoded(data, feature):
    """Pixels of an encoded image in the shape and type that the schema states."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels.ndim == 3:
        order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
        pixels = np.ascontiguousarray(pixels[..., order])
    if feature.dtype == "float32":
        pixels = pixels.view(np.float32)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def assert_equal(feature, ours, theirs, where, pixels=False):
    """One value: ours as handed to the writer, theirs as TFDS returned it (eagerly).

    `pixels`: TFDS has decoded the images.
    """
    match feature:
        case f.FeaturesDict(features):
            assert set(theirs) == set(features), where
            for name, inner in features.items():
                assert_equal(inner, ours[name], theirs[name], f"{where}/{name}")
        case f.Sequence(f.FeaturesDict(features)):
            for name, inner in features.items():
                assert_equal(f.Sequence(inner), ours[name], theirs[name], f"{where}/{name}")
        case f.Sequence(inner):
            items = theirs.to_list() if hasattr(theirs, "to_list") else list(_plain(theirs))
            assert len(ours) == len(items), where
            for i, (one, other) in enumerate(zip(ours, items, strict=True)):
                assert_equal(inner, one, other, f"{where}[{i}]", pixels=True)
        case f.Image() if pixels:
            expected = decoded(ours, feature)
            got = np.asarray(_plain(theirs))
            assert got.dtype == feature.dtype or isinstance(theirs, list), where
            np.testing.assert_array_equal(got, expected, where)
        case f.Image() | f.Text():
            assert _plain(theirs) == _bytes(ours), where
        case f.Tensor(shape, "string"):
            got = np.asarray(_plain(theirs), object)
            expected = np.array([_bytes(one) for one in np.asarray(ours, object).flat], object)
            assert got.reshape(-1).tolist() == expected.tolist(), where
            assert got.shape == shape, where
        case f.Tensor() | f.Scalar():
            got, expected = np.asarray(_plain(theirs)), np.asarray(ours, feature.dtype)
            if not isinstance(theirs, (list, float, int)):  # items of ragged lists lost their type
                assert got.dtype == feature.dtype, f"{where}: {got.dtype}"
            np.testing.assert_array_equal(got.astype(feature.dtype), expected, where)
        case _:
            raise TypeError(feature)


def at_step(feature, column, t):
    """The values of one step from the columns of an episode."""
    if isinstance(feature, f.FeaturesDict):
        return {name: at_step(inner, column[name], t) for name, inner in feature.features.items()}
    if isinstance(feature, f.Sequence) and isinstance(feature.feature, f.FeaturesDict):
        inner = feature.feature.features
        return {name: at_step(f.Sequence(one), column[name], t) for name, one in inner.items()}
    return column[t]


def _plain(value):
    return value.numpy() if hasattr(value, "numpy") else value


def _bytes(value):
    return value.encode() if isinstance(value, str) else value
