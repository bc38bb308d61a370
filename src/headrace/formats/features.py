"""The schema of a dataset, from the `features.json` that TFDS writes beside the shards.

Two dialects occur. The current one names a class and a typed body::

    {"pythonClassName": "...tensor_feature.Tensor",
     "tensor": {"shape": {"dimensions": ["7"]}, "dtype": "float32", "encoding": "none"}}

the older one a class and its content, which may itself be such a body::

    {"type": "...features.Tensor", "content": {"shape": [7], "dtype": "float32"}}

Nested dicts are flattened to keys joined by "/", exactly as TFDS names them in a record.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import DatasetError, UnknownFieldError

INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
COPY_AGAIN = "Copy it again from the source of the data"
STEPS = "steps"  #: the RLDS name of the sequence of steps
_SEQUENCES = {"Dataset", "Sequence"}
_IMAGES = {"Image", "LabeledImage"}
# A class that the dataset defines keeps the body of the TFDS class it derives from.
_BODY_CLASSES = {
    "featuresDict": "FeaturesDict",
    "sequence": "Sequence",
    "tensor": "Tensor",
    "text": "Text",
    "image": "Image",
    "video": "Video",
    "classLabel": "ClassLabel",
    "boundingBox": "BBoxFeature",
}
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Field:
    """One leaf of the schema."""

    key: str  #: flattened, as in the record: "steps/observation/image"
    kind: str  #: "image", "text", "tensor" or "unsupported"
    dtype: str  #: numpy's name; "string" for text and bytes
    shape: tuple[int | None, ...]  #: of one step's value (of one image: height, width, channels)
    per_step: bool  #: whether it belongs to a step rather than to the episode
    nesting: int  #: number of sequences between the step, or episode, and the value
    encoding: str | None  #: "jpeg" or "png" (image), "bytes" or "zlib" (tensor), else None

    @property
    def name(self) -> str:
        """The key relative to a step, as registry and mixtures give it."""
        return self.key.removeprefix(f"{STEPS}/")

    @property
    def is_camera(self) -> bool:
        """Whether every step holds one encoded image of it."""
        return self.kind == "image" and self.per_step and self.nesting == 0

    @property
    def is_string(self) -> bool:
        """Whether its values are text or bytes."""
        return self.dtype == "string"

    @property
    def ragged(self) -> bool:
        """Whether TFDS stores it as flat values with row lengths."""
        return self.nesting + self.per_step > 1

    @property
    def stores_shape(self) -> bool:
        """Whether every value carries its own shape (two or more unknown dimensions)."""
        return self.kind == "tensor" and self.shape.count(None) > 1

    @property
    def width(self) -> int | None:
        """The number of elements of one value, if that is fixed."""
        if any(size is None for size in self.shape):
            return None
        return math.prod(size for size in self.shape if size is not None)

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """The dtype of its values in numpy."""
        return np.dtype(object) if self.is_string else np.dtype(self.dtype)


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset."""

    fields: tuple[Field, ...]  #: in key order

    @property
    def cameras(self) -> tuple[Field, ...]:
        """Fields that hold one image a step, depth included."""
        return tuple(field for field in self.fields if field.is_camera)

    def find(self, name: str, *, among: str = "field") -> Field:
        """The field called `name`: a full key, one relative to a step, or the end of one key.

        `among="camera"` looks among the cameras only.
        """
        found = self.get(name, among=among)
        if found is None:
            known = self.cameras if among == "camera" else self.fields
            names = ", ".join(field.name for field in known) or "none"
            raise UnknownFieldError(f"no {among} {name!r}", remedy=f"Known {among}s: {names}")
        return found

    def get(self, name: str, *, among: str = "field") -> Field | None:
        """As `find`, but None where there is none; a name that several fit is still an error."""
        known = self.cameras if among == "camera" else self.fields
        by_key = {field.key: field for field in known}
        for key in (name, f"{STEPS}/{name}", f"{STEPS}/observation/{name}"):
            if key in by_key:
                return by_key[key]
        ending = [field for field in known if field.key.endswith(f"/{name}")]
        if len(ending) == 1:
            return ending[0]
        if ending:
            names = ", ".join(field.name for field in ending)
            raise UnknownFieldError(
                f"{among} {name!r} is ambiguous", remedy=f"Write one of: {names}"
            )
        return None


def read_metadata(path: Path) -> bytes:
    """The content of a metadata file of TFDS."""
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block
            raise OSError(errno.EINVAL, "it is not a regular file")
        return path.read_bytes()
    except FileNotFoundError:
        raise DatasetError(
            f"{path.name} is missing, so this is not a complete TFDS dataset",
            file=str(path),
            remedy=f"Give the version folder of a dataset (it holds {INFO_FILE} and "
            f"{FEATURES_FILE}), or copy the file again from the source of the data",
        ) from None
    except OSError as error:
        raise DatasetError(
            f"{path.name} cannot be read: {error.strerror}", file=str(path), remedy=COPY_AGAIN
        ) from None


def read_features(path: Path) -> Schema:
    """The schema in a `features.json` file."""
    try:
        return parse_features(json.loads(read_metadata(path)))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DatasetError(
            f"features.json is not JSON: {error}", file=str(path), remedy=COPY_AGAIN
        ) from None
    except DatasetError as error:
        raise error.within(file=str(path)) from None


def parse_features(tree: Any) -> Schema:
    """The schema in a parsed `features.json`."""
    try:
        fields = sorted(_leaves(tree, (), per_step=False, nesting=0, depth=0), key=lambda f: f.key)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"features.json cannot be parsed: {type(error).__name__} {error}",
            remedy="It is damaged, or in a dialect that headrace does not know: please report it",
        ) from None
    keys = [field.key for field in fields]
    for before, after in pairwise(keys):
        if before == after:
            raise DatasetError(f"features.json has two features named {after!r} once flattened")
    if not any(field.per_step for field in fields):
        raise DatasetError(
            "features.json has no `steps`: this is a TFDS dataset but not one of episodes (RLDS)",
            remedy="headrace reads datasets whose records are episodes with a `steps` sequence",
        )
    return Schema(tuple(fields))


def _leaves(
    node: dict[str, Any], path: tuple[str, ...], *, per_step: bool, nesting: int, depth: int
) -> Iterator[Field]:
    """The leaves below a node, in no particular order."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    class_name, body = _class_and_body(node)
    if class_name == "FeaturesDict":
        for name, child in body.items():
            yield from _leaves(
                child, (*path, name), per_step=per_step, nesting=nesting, depth=depth + 1
            )
        return
    if class_name in _SEQUENCES:
        is_steps = path == (STEPS,) and not per_step and nesting == 0
        yield from _leaves(
            body["feature"],
            path,
            per_step=per_step or is_steps,
            nesting=nesting if is_steps else nesting + 1,
            depth=depth + 1,
        )
        return
    yield _leaf(class_name, body, "/".join(path), per_step, nesting)


def _leaf(class_name: str, body: dict[str, Any], key: str, per_step: bool, nesting: int) -> Field:
    dtype = str(body.get("dtype", "") or "")
    encoding = body.get("encoding")
    if class_name == "Text":
        return Field(key, "text", "string", (), per_step, nesting, None)
    if class_name in _IMAGES or class_name == "Video":
        shape = _shape(body.get("shape")) or (None, None, 3)
        image_format = body.get("encodingFormat") or body.get("encoding_format") or None
        if class_name == "Video":  # a sequence of images
            shape, nesting = shape[-3:], nesting + 1
        return Field(key, "image", dtype or "uint8", shape, per_step, nesting, image_format)
    if class_name == "ClassLabel":
        return Field(key, "tensor", "int64", (), per_step, nesting, None)
    if class_name == "BBoxFeature":
        return Field(key, "tensor", "float32", (4,), per_step, nesting, None)
    if class_name in ("Tensor", "Scalar"):
        tensor_encoding = str(encoding).lower() if encoding else "none"
        dtype = "string" if dtype in ("object", "str", "bytes", "string") else dtype
        known = dtype == "string" or _is_numpy(dtype)
        if known and tensor_encoding in ("none", "bytes", "zlib"):
            stored = None if tensor_encoding == "none" else tensor_encoding
            shape = _shape(body.get("shape"))
            return Field(key, "tensor", dtype, shape, per_step, nesting, stored)
    return Field(key, "unsupported", dtype or class_name, (), per_step, nesting, None)


def _class_and_body(node: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A node's TFDS class and its content, in either dialect."""
    if "pythonClassName" in node:
        class_name = str(node["pythonClassName"]).rsplit(".", 1)[-1]
        for body_name, body_class in _BODY_CLASSES.items():
            if body_name in node:
                body = node[body_name]
                own = class_name in ("Dataset", "Scalar", "LabeledImage")
                is_dict = body_name == "featuresDict"
                return class_name if own else body_class, body["features"] if is_dict else body
        return class_name, {}
    class_name = str(node["type"]).rsplit(".", 1)[-1]
    content = node["content"]
    if isinstance(content, str):  # a body that is itself serialised
        content = json.loads(content or "{}")
    if class_name == "FeaturesDict" and "proto_cls" in node:
        content = content["features"]
    return class_name, dict(content or {})


def _shape(shape: Any) -> tuple[int | None, ...]:
    """A shape in either dialect; unknown dimensions are -1 or null there, None here."""
    sizes = shape.get("dimensions", []) if isinstance(shape, dict) else (shape or [])
    numbers = [-1 if size is None else int(size) for size in sizes]
    return tuple(None if number < 0 else number for number in numbers)


def _is_numpy(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False
