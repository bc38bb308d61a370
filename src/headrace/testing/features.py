"""What a dataset holds: a small description of features, and its `features.json`.

The classes carry the names of their TFDS counterparts (`Steps` is TFDS's `Dataset`). `to_json`
writes the three dialects found in published datasets:

current   `pythonClassName` and a message per feature, as TFDS 4.6 and later write it
typed     `type`, `content` and `proto_cls` around the same messages
older     `type` and `content` as plain JSON, shapes as lists, unknown dimensions as null

`parse_features` reads the short notation of `oxe29.toml`:

text                 Text                        string, string[2]    string tensor
float32, float32[7]  Tensor                      float32[7] zlib      Tensor with an encoding
scalar bool          Scalar                      image 480x640        Image, encoding not stated
jpeg 480x640         Image, JPEG                 png 224x224          Image, PNG
depth16 360x640      uint16 Image, PNG           depth32 480x640      float32 Image
[...]                Sequence of the one entry   a table              FeaturesDict
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

Shape: TypeAlias = tuple[int | None, ...]
Dialect: TypeAlias = Literal["current", "typed", "older"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Numbers, bools or strings (dtype `string`) of a shape; None is an unknown dimension."""

    shape: Shape
    dtype: str
    encoding: Literal["none", "bytes", "zlib"] = "none"
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number or bool: on disk the same as `Tensor((), dtype)`, another class in the schema."""

    dtype: str
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One UTF-8 string."""

    doc: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded image; float32 is one channel, bit-cast to a four-channel PNG."""

    shape: Shape = (None, None, 3)
    dtype: Literal["uint8", "uint16", "float32"] = "uint8"
    encoding_format: Literal["jpeg", "png"] | None = None  #: None: the schema does not say
    doc: str = ""


@dataclass(frozen=True, slots=True)
class FeaturesDict:
    """Named features. A name may contain a slash."""

    features: Mapping[str, Feature]
    doc: str = ""

    def __getitem__(self, name: str) -> Feature:
        return self.features[name]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Any number of values of one feature; ragged when inside `Steps` or another sequence."""

    feature: Feature
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an episode."""

    feature: FeaturesDict
    doc: str = ""


Feature: TypeAlias = Tensor | Scalar | Text | Image | FeaturesDict | Sequence | Steps

_PACKAGE = "tensorflow_datasets.core.features"
_CLASSES: dict[type, str] = {
    Tensor: f"{_PACKAGE}.tensor_feature.Tensor",
    Scalar: f"{_PACKAGE}.scalar.Scalar",
    Text: f"{_PACKAGE}.text_feature.Text",
    Image: f"{_PACKAGE}.image_feature.Image",
    FeaturesDict: f"{_PACKAGE}.features_dict.FeaturesDict",
    Sequence: f"{_PACKAGE}.sequence_feature.Sequence",
    Steps: f"{_PACKAGE}.dataset_feature.Dataset",
}
_MESSAGES: dict[type, tuple[str, str]] = {  # field of the Feature message, and its type
    Tensor: ("tensor", "TensorFeature"),
    Scalar: ("tensor", "TensorFeature"),
    Text: ("text", "TextFeature"),
    Image: ("image", "ImageFeature"),
    FeaturesDict: ("featuresDict", "FeaturesDict"),
    Sequence: ("sequence", "Sequence"),
    Steps: ("sequence", "Sequence"),
}


def to_json(feature: Feature, dialect: Dialect = "current") -> dict[str, Any]:
    """The content of `features.json` for a feature tree.

    >>> to_json(Scalar("bool"))["tensor"]
    {'shape': {}, 'dtype': 'bool', 'encoding': 'none'}
    """
    if dialect == "older":
        return _older(feature)
    if dialect == "typed":
        return {
            "type": _CLASSES[type(feature)],
            "content": _message(feature),
            "proto_cls": f"tensorflow_datasets.{_MESSAGES[type(feature)][1]}",
        }
    entry: dict[str, Any] = {"pythonClassName": _CLASSES[type(feature)]}
    if feature.doc:
        entry["description"] = feature.doc
    entry[_MESSAGES[type(feature)][0]] = _message(feature)
    return entry


def _message(feature: Feature) -> dict[str, Any]:
    """A feature's own message, in the JSON form of protocol buffers (64-bit ints as strings)."""
    match feature:
        case Tensor(shape, dtype, encoding):
            return {"shape": _dimensions(shape), "dtype": dtype, "encoding": encoding}
        case Scalar(dtype):
            return {"shape": {}, "dtype": dtype, "encoding": "none"}
        case Text():
            return {}
        case Image(shape, dtype, encoding_format):
            stated = {"encodingFormat": encoding_format} if encoding_format else {}
            return {"shape": _dimensions(shape), "dtype": dtype, **stated}
        case FeaturesDict(features):
            return {"features": {name: to_json(inner) for name, inner in features.items()}}
        case Sequence(inner) | Steps(inner):
            return {"feature": to_json(inner), "length": "-1"}


def _dimensions(shape: Shape) -> dict[str, Any]:
    return {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}


def _older(feature: Feature) -> dict[str, Any]:
    """The plain JSON dialect, which had neither `Scalar` nor descriptions."""
    content: dict[str, Any]
    match feature:
        case Tensor(shape, dtype, encoding):
            content = {"shape": list(shape), "dtype": dtype, "encoding": encoding}
        case Scalar(dtype):
            return _older(Tensor((), dtype))
        case Text():
            content = {}
        case Image(shape, dtype, encoding_format):
            content = {"shape": list(shape), "dtype": dtype, "encoding_format": encoding_format}
        case FeaturesDict(features):
            content = {name: _older(inner) for name, inner in features.items()}
        case Sequence(inner) | Steps(inner):
            content = {"feature": _older(inner), "length": None}
    return {"type": _CLASSES[type(feature)], "content": content}


def image_features(feature: Feature, key: str = "") -> Iterator[tuple[str, Image]]:
    """Every image of a feature tree with its key, in the order of the cameras' numbers."""
    match feature:
        case Image():
            yield key, feature
        case FeaturesDict(features):
            for name in sorted(features):
                yield from image_features(features[name], f"{key}/{name}" if key else name)
        case Steps(inner) | Sequence(inner):
            yield from image_features(inner, key)
        case _:
            return


# -- the short notation ----------------------------------------------------------------------------

_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)(\[(?P<shape>[\d,]+)\])?( (?P<encoding>bytes|zlib))?")
_IMAGE = re.compile(r"(?P<kind>image|jpeg|png|depth16|depth32) (?P<height>\d+)x(?P<width>\d+)")


def parse_features(table: dict[str, Any]) -> FeaturesDict:
    """The features of an episode; the entry `steps` becomes its steps.

    >>> parse_features({"steps": {"action": "float32[7]"}})["steps"].feature["action"]
    Tensor(shape=(7,), dtype='float32', encoding='none', doc='')
    """
    features = {name: _parse(entry) for name, entry in table.items()}
    steps = features.get("steps")
    if isinstance(steps, FeaturesDict):
        features["steps"] = Steps(steps)
    return FeaturesDict(features)


def _parse(entry: Any) -> Feature:
    if isinstance(entry, dict):
        return FeaturesDict({name: _parse(inner) for name, inner in entry.items()})
    if isinstance(entry, list):
        return Sequence(_parse(entry[0]))
    return _parse_leaf(entry)


def _parse_leaf(text: str) -> Feature:
    if text == "text":
        return Text()
    if text.startswith("scalar "):
        return Scalar(text.removeprefix("scalar "))
    if image := _IMAGE.fullmatch(text):
        size = (int(image["height"]), int(image["width"]))
        match image["kind"]:
            case "depth16":
                return Image((*size, 1), "uint16", "png")
            case "depth32":
                return Image((*size, 1), "float32")
            case "image":
                return Image((*size, 3))
            case kind:
                return Image((*size, 3), "uint8", cast(Any, kind))
    if tensor := _TENSOR.fullmatch(text):
        shape = tuple(int(size) for size in tensor["shape"].split(",")) if tensor["shape"] else ()
        return Tensor(shape, tensor["dtype"], cast(Any, tensor["encoding"] or "none"))
    raise ValueError(f"not a feature: {text!r}")
