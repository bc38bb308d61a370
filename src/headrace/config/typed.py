"""Plain values, as YAML and command lines give them, into dataclasses: the one reader of config.

Errors name the key path, the value, what is accepted, and the nearest name where one is mistyped.
"""

from __future__ import annotations

import difflib
import math
import numbers
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headrace.errors import UsageError

_T = TypeVar("_T")
_hints: Any = cache(get_type_hints)  # of a dataclass
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def typed(kind: type[_T], values: Any, where: str = "") -> _T:
    """An object of a dataclass from the mapping at `where`; keys it does not have are an error.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Step:
    ...     lr: float = 1e-4
    >>> typed(Step, {"lr": 1})
    Step(lr=1.0)
    """
    if not isinstance(values, Mapping):
        raise UsageError(
            f"{where or 'the config'} is {shown(values)}, not a group of keys",
            remedy=f"Keys here: {', '.join(_names(kind))}.",
        )
    names, hints = _names(kind), _hints(kind)
    for key in values:
        if key not in names:
            raise _UnknownKey(
                f"unknown key {_under(where, str(key))}",
                remedy=f"{nearest(str(key), names)}Keys here: {', '.join(names)}.",
                field=None if nearest(str(key), names) else str(key),
            )
    found: dict[str, Any] = {}
    try:
        for field in fields(kind):  # type: ignore[arg-type]
            place = _under(where, field.name)
            if field.name in values:
                found[field.name] = _value(hints[field.name], values[field.name], place)
            elif _required(field):
                raise UsageError(f"{place} is missing", remedy=f"Give {_wanted(hints[field.name])}")
    except _UnknownKey as error:
        if not where and error.field and (same := _keys_named(kind, error.field)):
            remedy = f"Did you mean {same[0]!r}? {error.remedy}"
            raise UsageError(error.problem, remedy=remedy) from None
        raise
    try:
        return kind(**found)
    except UsageError as error:
        if not where or error.problem.startswith(f"{where}."):
            raise
        raise UsageError(f"{where}: {error.problem}", remedy=error.remedy) from None


def check_types(made: Any) -> None:
    """Check an object of a dataclass that was made by hand as `typed` would, in `__post_init__`."""
    hints = _hints(type(made))
    for field in fields(made):
        value = _value(hints[field.name], getattr(made, field.name), field.name)
        object.__setattr__(made, field.name, value)


def plain(value: Any) -> Any:
    """The inverse: nested dataclasses as plain values that YAML and JSON have."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def mapping(value: Any, where: str, keys: Iterable[str]) -> dict[str, Any]:
    """A mapping with no other keys than these."""
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{where} is {shown(value)}, not a mapping", remedy="Write `{key: value, ...}`."
        )
    for key in value:
        if key not in keys:
            raise unknown_key(key, where, keys)
    return dict(value)


def unknown_key(key: Any, where: str, keys: Iterable[str]) -> UsageError:
    """The error for a key that does not exist, with the nearest that does."""
    place = key if where.startswith(("the ", "an ")) else f"{where}.{key}"
    return UsageError(
        f"unknown key {place!s}", remedy=f"{nearest(str(key), keys)}Keys here: {', '.join(keys)}."
    )


def shown(value: Any) -> str:
    """Short repr of a value, with its type where the type may be the error."""
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return (
        text
        if value is None or isinstance(value, (str, float))
        else f"{text} ({type(value).__name__})"
    )


def nearest(word: str, words: Iterable[str], ask: str = "Did you mean {!r}? ") -> str:
    """A question that offers the most similar word; empty if none is similar."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return ask.format(near[0]) if near else ""


class _UnknownKey(UsageError):
    """A key (`field`) that nothing at its level is called; it may exist elsewhere."""

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


def _keys_named(kind: type[Any], name: str, where: str = "") -> list[str]:
    """Paths of the keys of this name, in a dataclass and those in it."""
    found = []
    hints = _hints(kind)
    for field in fields(kind):
        path = _under(where, field.name)
        if field.name == name:
            found.append(path)
        for hint in (hints[field.name], *get_args(hints[field.name])):
            if is_dataclass(hint) and isinstance(hint, type):
                found += _keys_named(hint, name, path)
    return found


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _under(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(hint), value, where)
    if origin is Literal:
        choices = get_args(hint)
        if value in choices:
            return value
        near = nearest(str(value), map(str, choices))
        wanted = f"Give one of {', '.join(map(_shown_choice, choices))}."
        raise UsageError(f"{where} is {shown(value)}", remedy=f"{near}{wanted}")
    if origin is tuple:
        return _tuple(get_args(hint), value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{where} is {shown(value)}, not a group of keys", remedy="Write {key: value, ...}"
            )
        return {str(key): inner for key, inner in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else typed(hint, value, where)
    found, good = _scalar(hint, value)
    if not good:
        raise UsageError(f"{where} is {shown(value)}", remedy=f"Give {_wanted(hint)}.")
    return found


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    rest = [hint for hint in hints if hint is not type(None)]
    for hint in rest[:-1]:
        try:
            return _value(hint, value, where)
        except UsageError:
            continue
    try:
        return _value(rest[-1], value, where)
    except UsageError as error:
        if len(hints) == 1 or is_dataclass(rest[-1]):
            raise
        wanted = " or ".join(map(_wanted, hints))
        raise UsageError(error.problem, remedy=f"Give {wanted}.") from None


def _tuple(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where} is {shown(value)}", remedy="Give a list: [a, b]")
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise UsageError(f"{where} is {shown(value)}", remedy=f"Give a list of {len(hints)} values")
    return tuple(
        _value(hint, inner, f"{where}[{n}]")
        for n, (hint, inner) in enumerate(zip(hints, value, strict=True))
    )


def _scalar(hint: Any, value: Any) -> tuple[Any, bool]:
    """The value as that type, and whether it can be had as one: 1e5 is a whole number too."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)  # numpy's as well
    if hint is float:
        return (float(value), True) if number else (value, False)
    if hint is int:
        whole = number and math.isfinite(value) and value == int(value)
        return (int(value), True) if whole else (value, False)
    return value, isinstance(value, hint)


def _wanted(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if get_origin(hint) is Literal:
        return " or ".join(map(_shown_choice, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_wanted, get_args(hint)))
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        return f"[{', '.join(map(_wanted, get_args(hint)))}]"
    return _WORDS.get(hint, "a group of keys")


def _shown_choice(choice: Any) -> str:
    if isinstance(choice, bool):
        return "true" if choice else "false"
    return str(choice)
