"""Which fields of a dataset play which role: camera, action, state, instruction.

A dataset of the registry is known; for any other the roles are found from its schema by the names
that RLDS datasets use, and whatever is given by hand wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.config.registry import KnownDataset, known_for_folder
from headrace.errors import UnknownFieldError
from headrace.formats.features import Field, Schema

_CAMERAS = ("image", "rgb", "image_0", "image_1", "front", "agentview", "static", "exterior")
_NOT_MAIN = ("depth", "wrist", "gripper", "hand", "segment", "mask", "goal", "target")
_ACTIONS = ("action", "action/world_vector", "action/actions")
_STATES = ("state", "robot_state", "proprio", "robot_obs", "cartesian_position", "joint_position")
_LANGUAGE = (
    "language_instruction",
    "natural_language_instruction",
    "multimodal_instruction",
    "instruction",
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Fields by the part they play; None where a dataset has nothing of the kind."""

    camera: Field | None
    action: Field | None
    state: Field | None
    language: Field | None
    known: KnownDataset | None  #: the registry's entry, if it is one of the registry's


def find_roles(
    schema: Schema,
    folder: Path,
    *,
    camera: str | None = None,
    action: str | None = None,
    state: str | None = None,
    language: str | None = None,
) -> Roles:
    """The roles of a dataset's fields. A name given by hand must exist."""
    known = known_for_folder(folder)
    return Roles(
        camera=_choose(schema, camera, known.camera if known else None, _main_camera, "camera"),
        action=_choose(schema, action, known.action if known else None, _action, "field"),
        state=_choose(schema, state, known.state if known else None, _state, "field"),
        language=_choose(schema, language, known.language if known else None, _language, "field"),
        known=known,
    )


def _choose(
    schema: Schema,
    given: str | None,
    registered: str | None,
    guess: Callable[[Schema], Field | None],
    among: str,
) -> Field | None:
    if given is not None:
        return schema.find(given, among=among)
    if registered is not None:
        try:
            return schema.find(registered, among=among)
        except UnknownFieldError:  # a folder of that name with another schema
            pass
    return guess(schema)


def _main_camera(schema: Schema) -> Field | None:
    """The first colour camera with a common name, else the first that is not a side one."""
    colour = [f for f in schema.cameras if f.dtype == "uint8" and f.shape[-1] in (3, 4, None)]
    main = [f for f in colour if not any(word in f.key for word in _NOT_MAIN)]
    return (
        _first_named(main, _CAMERAS)
        or _first_containing(main, _CAMERAS)
        or next(iter(main or colour or schema.cameras), None)
    )


def _action(schema: Schema) -> Field | None:
    numbers = [f for f in schema.fields if f.per_step and _is_vector(f)]
    for name in _ACTIONS:
        for field in numbers:
            if field.name == name:
                return field
    return next((f for f in numbers if f.name.startswith("action/")), None)


def _state(schema: Schema) -> Field | None:
    numbers = [f for f in schema.fields if f.name.startswith("observation/") and _is_vector(f)]
    return _first_named(numbers, _STATES)


def _language(schema: Schema) -> Field | None:
    texts = [f for f in schema.fields if f.per_step and not f.ragged and _is_text(f)]
    return _first_named(texts, _LANGUAGE)


def _first_named(fields: Iterable[Field], names: Iterable[str]) -> Field | None:
    by_name = {field.key.rsplit("/", 1)[-1]: field for field in reversed(list(fields))}
    return next((by_name[name] for name in names if name in by_name), None)


def _first_containing(fields: Iterable[Field], words: Iterable[str]) -> Field | None:
    fields = list(fields)
    return next((f for word in words for f in fields if word in f.key), None)


def _is_vector(field: Field) -> bool:
    return (
        field.kind == "tensor"
        and not field.is_string
        and not field.ragged
        and field.np_dtype.kind == "f"
        and field.width is not None
    )


def _is_text(field: Field) -> bool:
    """Text, or a tensor of Unicode code points as language_table has it."""
    codes = field.kind == "tensor" and field.dtype == "int32" and len(field.shape) == 1
    return field.kind == "text" or (field.is_string and field.shape == ()) or codes
