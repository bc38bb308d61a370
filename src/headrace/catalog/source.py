"""Which fields of a dataset play which role: camera, action, state, instruction, robot.

A dataset of the registry is known; for any other the roles are found from its schema by the names
that RLDS datasets use, and whatever is given by hand wins. A field that the registry or a mixture
names and this copy of the dataset does not have is `missing`: only the camera is required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.config.registry import KnownDataset, known_for_folder
from headrace.errors import SelectionError, UnknownFieldError
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
class MissingRole:
    """A role whose named field the files do not have, or not as what the role needs."""

    role: str
    field: str  #: as the mixture or the registry names it
    problem: str
    candidates: tuple[str, ...]  #: fields that could play the role

    def __str__(self) -> str:
        few, more = self.candidates[:8], len(self.candidates) - 8
        there = ", ".join(few) + (f" and {more} more" if more > 0 else "") or "none"
        return f"{self.role} {self.field!r} ({self.problem}; there are: {there})"


@dataclass(frozen=True, slots=True)
class Roles:
    """Fields by the part they play; None where a dataset has nothing of the kind."""

    camera: Field | None
    action: Field | None
    state: Field | None
    language: Field | None
    robot: Field | None
    known: KnownDataset | None  #: the registry's entry, if it is one of the registry's
    missing: tuple[MissingRole, ...] = ()  #: named, but not in the files: left empty

    def main_camera(self) -> Field:
        """The camera, which is the one role that is required."""
        if self.camera is not None:
            return self.camera
        for each in self.missing:
            if each.role == "camera":
                known = ", ".join(each.candidates) or "none"
                raise UnknownFieldError(
                    f"no camera {each.field!r}", remedy=f"Known cameras: {known}"
                )
        raise SelectionError("the dataset has no camera", remedy="Choose a dataset with images")


def missing_line(missing: Sequence[MissingRole]) -> str | None:
    """All missing roles of a dataset in one line; None if there are none."""
    required = [str(each) for each in missing if each.role == "camera"]
    optional = [str(each) for each in missing if each.role != "camera"]
    parts = {"it cannot be loaded without": required, "left empty": optional}
    return "; ".join(f"{what}: {', '.join(each)}" for what, each in parts.items() if each) or None


def find_roles(
    schema: Schema,
    folder: Path,
    *,
    camera: str | None = None,
    action: str | None = None,
    state: str | None = None,
    language: str | None = None,
    robot: str | None = None,
) -> Roles:
    """The roles of a dataset's fields; names given by hand go before those of the registry."""
    known = known_for_folder(folder)
    given = {
        "camera": camera,
        "action": action,
        "state": state,
        "language": language,
        "robot": robot,
    }
    found: dict[str, Field | None] = {}
    missing: list[MissingRole] = []
    for role, kind in _KINDS.items():
        name = given[role] or (getattr(known, role) if known else None)
        field = schema.get(name, among=kind.among) if name else kind.guess(schema)
        if name and (field is None or not kind.fits(field)):
            problem = "not in the files" if field is None else f"it is not {kind.what}"
            names = [each.name for each in schema.fields if kind.suggested(each)]
            names.sort(key=lambda each: not each.startswith(kind.usually))
            missing.append(MissingRole(role, name, problem, tuple(names)))
            field = None
        found[role] = field
    return Roles(**found, known=known, missing=tuple(missing))


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
    numbers = [f for f in schema.fields if _is_vector(f)]
    for name in _ACTIONS:
        for field in numbers:
            if field.name == name:
                return field
    return next((f for f in numbers if f.name.startswith("action/")), None)


def _state(schema: Schema) -> Field | None:
    numbers = [f for f in schema.fields if f.name.startswith("observation/") and _is_vector(f)]
    return _first_named(numbers, _STATES)


def _language(schema: Schema) -> Field | None:
    return _first_named(filter(_is_text_of_step, schema.fields), _LANGUAGE)


def _first_named(fields: Iterable[Field], names: Iterable[str]) -> Field | None:
    by_name = {field.key.rsplit("/", 1)[-1]: field for field in reversed(list(fields))}
    return next((by_name[name] for name in names if name in by_name), None)


def _first_containing(fields: Iterable[Field], words: Iterable[str]) -> Field | None:
    fields = list(fields)
    return next((f for word in words for f in fields if word in f.key), None)


def _is_vector(field: Field) -> bool:
    return _is_numbers_of_step(field) and field.np_dtype.kind == "f"


def _is_numbers_of_step(field: Field) -> bool:
    return (
        field.per_step
        and field.kind == "tensor"
        and not field.is_string
        and not field.ragged
        and field.width is not None
    )


def _is_text_of_step(field: Field) -> bool:
    """Text, or a tensor of Unicode code points as language_table has it."""
    codes = field.kind == "tensor" and field.dtype == "int32" and len(field.shape) == 1
    text = field.kind == "text" or (field.is_string and field.shape == ()) or codes
    return field.per_step and not field.ragged and text


def _is_likely_text(field: Field) -> bool:
    """Not any vector of integers, though it may be code points."""
    named = field.name.rsplit("/", 1)[-1] in _LANGUAGE
    return _is_text_of_step(field) and (field.is_string or named)


def _is_text_of_episode(field: Field) -> bool:
    return field.is_string and field.shape == () and not field.per_step and not field.nesting


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a role needs of a field."""

    what: str
    fits: Callable[[Field], bool]
    suggested: Callable[[Field], bool]  #: whether it is worth naming where another is missing
    guess: Callable[[Schema], Field | None]
    usually: str = ""  #: how the names of such fields begin
    among: str = "field"


def _numbers(guess: Callable[[Schema], Field | None], usually: str) -> _Kind:
    what = "numbers of a fixed size in every step"
    return _Kind(
        what, _is_numbers_of_step, lambda f: _is_vector(f) and f.shape != (), guess, usually
    )


def _is_camera(field: Field) -> bool:
    return field.is_camera


_KINDS = {
    "camera": _Kind("a camera", _is_camera, _is_camera, _main_camera, among="camera"),
    "action": _numbers(_action, "action"),
    "state": _numbers(_state, "observation/"),
    "language": _Kind("one text in every step", _is_text_of_step, _is_likely_text, _language),
    "robot": _Kind(
        "one text of the episode", _is_text_of_episode, _is_text_of_episode, lambda _: None
    ),
}
#: The roles, the required one first.
ROLES = tuple(_KINDS)
