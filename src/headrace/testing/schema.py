"""A short notation for features, as used in `oxe29.toml`.

text                 Text                        string, string[2]    string tensor
float32, float32[7]  Tensor                      float32[7] zlib      Tensor with an encoding
scalar bool          Scalar                      image 480x640        Image, encoding not stated
jpeg 480x640         Image, JPEG                 png 224x224          Image, PNG
depth16 360x640      uint16 Image, PNG           depth32 480x640      float32 Image
[...]                Sequence of the one entry   a table              FeaturesDict
"""

from __future__ import annotations

import re
from typing import Any, cast

from headrace.testing import features as f

__all__ = ["parse_features"]

_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)(\[(?P<shape>[\d,]+)\])?( (?P<encoding>bytes|zlib))?")
_IMAGE = re.compile(r"(?P<kind>image|jpeg|png|depth16|depth32) (?P<height>\d+)x(?P<width>\d+)")


def parse_features(table: dict[str, Any]) -> f.FeaturesDict:
    """The features of an episode; the entry `steps` becomes its steps.

    >>> parse_features({"steps": {"action": "float32[7]"}})["steps"].feature["action"]
    Tensor(shape=(7,), dtype='float32', encoding='none', doc='')
    """
    features = {name: _parse(entry) for name, entry in table.items()}
    steps = features.get("steps")
    if isinstance(steps, f.FeaturesDict):
        features["steps"] = f.Steps(steps)
    return f.FeaturesDict(features)


def _parse(entry: Any) -> f.Feature:
    if isinstance(entry, dict):
        return f.FeaturesDict({name: _parse(inner) for name, inner in entry.items()})
    if isinstance(entry, list):
        return f.Sequence(_parse(entry[0]))
    return _parse_leaf(entry)


def _parse_leaf(text: str) -> f.Feature:
    if text == "text":
        return f.Text()
    if text.startswith("scalar "):
        return f.Scalar(text.removeprefix("scalar "))
    if image := _IMAGE.fullmatch(text):
        size = (int(image["height"]), int(image["width"]))
        match image["kind"]:
            case "depth16":
                return f.Image((*size, 1), "uint16", "png")
            case "depth32":
                return f.Image((*size, 1), "float32")
            case "image":
                return f.Image((*size, 3))
            case kind:
                return f.Image((*size, 3), "uint8", cast(Any, kind))
    if tensor := _TENSOR.fullmatch(text):
        shape = tuple(int(size) for size in tensor["shape"].split(",")) if tensor["shape"] else ()
        return f.Tensor(shape, tensor["dtype"], cast(Any, tensor["encoding"] or "none"))
    raise ValueError(f"not a feature: {text!r}")
