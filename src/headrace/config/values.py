"""Checks of the values of a mixture: each error names the key path, the value and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import UsageError

__all__ = ["check_name", "checked", "mapping", "nearest", "path_value", "shown", "unknown_key"]

#: Lowest value of the numbers, and whether they must be whole.
_NUMBERS = {
    "offset": (1, True),
    "samples_per_episode": (0, True),
    "offset_seconds": (0, False),
    "hz": (0, False),
}


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


def checked(values: Mapping[str, Any], where: str, keys: Iterable[str]) -> dict[str, Any]:
    """The values with their types: weights as floats or None, paths as paths."""
    found: dict[str, Any] = {}
    for key, value in mapping(values, where, keys).items():
        place = f"{where}.{key}"
        if key == "weight":
            found[key] = _weight(value, place)
        elif key == "path":
            found[key] = path_value(value, place)
        elif key in _NUMBERS:
            found[key] = _number(key, value, place)
        elif value is None and key not in ("name", "split"):
            found[key] = None
        else:
            _check_text(value, place)
            found[key] = value
    return found


def _weight(value: Any, where: str) -> float | None:
    if value is None or value == "proportional":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(
            f"{where} is {shown(value)}",
            remedy='Give a finite number (a share), or null or "proportional".',
        )
    return float(value)


def _number(key: str, value: Any, where: str) -> float | int | None:
    lowest, whole = _NUMBERS[key]
    if value is None:
        return 0 if key == "samples_per_episode" else None
    kinds = (int,) if whole else (int, float)
    good = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < lowest or (not whole and value == 0):
        wanted = f"a whole number from {lowest} upwards" if whole else "a number above 0"
        raise UsageError(f"{where} is {shown(value)}", remedy=f"Give {wanted}.")
    return value  # type: ignore[no-any-return]


def path_value(value: Any, where: str, folder: str | Path | None = None) -> Path | None:
    """A path, relative ones below `folder`."""
    if value is None:
        return None
    if not isinstance(value, Path):
        _check_text(value, where)
        if "://" in value:
            raise UsageError(
                f"{where} is the address {value!r}", remedy="Give a folder of this machine."
            )
    path = Path(value).expanduser()
    return path if folder is None else Path(folder).absolute() / path


def check_name(value: Any, where: str) -> None:
    """Complain of a source without a name."""
    if value is None:
        raise UsageError(f"{where} is missing", remedy="Every source has a name.")
    _check_text(value, where)


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(
            f"{where} is {shown(value)}, not text",
            remedy="Give a text; quote what looks like a number.",
        )


def shown(value: Any) -> str:
    """A value with its type where that is the news, cut short."""
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return (
        text
        if value is None or isinstance(value, (str, float))
        else f"{text} ({type(value).__name__})"
    )


def nearest(word: str, words: Iterable[str], ask: str = "Did you mean {!r}? ") -> str:
    """A question that offers the most similar word, if one is similar."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return ask.format(near[0]) if near else ""
