"""A run that a study asks for, as it stands in the file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.config.documents import parse_override
from headrace.config.typed import mapping, nearest, shown
from headrace.errors import UsageError

__all__ = ["Entry", "baseline_entry", "grid_entries", "ladder_entries", "run_entries"]

_CHANGES = ("backend", "change", "sources", "copies", "command")
LADDER_KEYS = ("label", "against", *_CHANGES)
RUN_KEYS = ("label", "backend", "overrides", "sources", "copies", "command")


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration: what it adds to the study's own settings."""

    label: str
    backend: str | None = None  #: None: the study's
    overrides: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  #: those of them that it does not share with its base
    sources: int | tuple[str, ...] | None = None  #: the first so many of the mixture, or these
    copies: int = 1  #: of each source: the same data as that many sources
    command: str | tuple[str, ...] | None = None
    change: str = ""  #: in words, against the row named in `against`
    against: str | None = None  #: the label of the row it is compared with; None: the baseline


def baseline_entry(value: Any) -> Entry:
    """The row that a ladder starts from."""
    given = mapping(value, "baseline", RUN_KEYS)
    return _run(given, "baseline", default="baseline", change="")


def ladder_entries(value: Any, baseline: Entry) -> tuple[Entry, ...]:
    """Each is the baseline (or the row in `against`) with exactly one change."""
    found = {baseline.label: baseline}
    entries = []
    for number, item in enumerate(_items(value, "ladder")):
        where = f"ladder[{number}]"
        given = mapping(item, where, LADDER_KEYS)
        changed = [key for key in _CHANGES if key in given]
        if not changed:
            raise UsageError(
                f"{where} changes nothing", remedy=f"Give one of {', '.join(_CHANGES)}"
            )
        against = _optional_text(given, "against", where)
        if against is not None and against not in found:
            raise UsageError(
                f"{where}.against is {against!r}, which is no row before it",
                remedy=f"{nearest(against, found)}Rows before it: {', '.join(found)}.",
            )
        base = found[against or baseline.label]
        entry = _run(
            {key: value for key, value in given.items() if key not in ("change", "against")},
            where,
            default=where,
        )
        override = given.get("change")
        if override is not None:
            _check_override(override, f"{where}.change")
        words = [_said(key, given[key]) for key in changed]
        entry = replace(
            base,
            label=_label(given, where, " ".join(words)),
            backend=entry.backend or base.backend,
            overrides=(*base.overrides, *([override] if override else [])),
            own=(override,) if override else (),
            sources=entry.sources if entry.sources is not None else base.sources,
            copies=entry.copies if "copies" in given else base.copies,
            command=entry.command or base.command,
            change=", ".join(words),
            against=against,
        )
        found[entry.label] = entry
        entries.append(entry)
    return tuple(entries)


def grid_entries(value: Any) -> tuple[Entry, ...]:
    """Every combination of the values."""
    axes = mapping(value, "grid", value if isinstance(value, Mapping) else ())
    if not axes:
        raise UsageError("grid is empty", remedy="Write `grid: {loader.batch_size: [64, 128]}`")
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(
                f"grid.{key} is {shown(values)}, not a list of values",
                remedy=f"Write `{key}: [a, b]`",
            )
    entries = []
    for combination in itertools.product(*axes.values()):
        words = [f"{key}={_yaml(v)}" for key, v in zip(axes, combination, strict=True)]
        overrides = tuple(word for word in words if not word.startswith("backend="))
        backend = next((w.partition("=")[2] for w in words if w.startswith("backend=")), None)
        label = ", ".join(word.rpartition(".")[2] for word in words)
        entries.append(Entry(label, backend, overrides, overrides, change=", ".join(words)))
    return tuple(entries)


def run_entries(value: Any) -> tuple[Entry, ...]:
    """Runs in full."""
    return tuple(
        _run(mapping(item, f"runs[{number}]", RUN_KEYS), f"runs[{number}]", default=None)
        for number, item in enumerate(_items(value, "runs"))
    )


def _run(
    given: Mapping[str, Any], where: str, *, default: str | None, change: str | None = None
) -> Entry:
    overrides = given.get("overrides") or []
    if not isinstance(overrides, list):
        raise UsageError(
            f"{where}.overrides is {shown(overrides)}, not a list", remedy="Write [key=value, ...]"
        )
    for number, override in enumerate(overrides):
        _check_override(override, f"{where}.overrides[{number}]")
    command = given.get("command")
    if isinstance(command, list) and command and all(isinstance(c, str) for c in command):
        command = tuple(command)
    elif command is not None and not (isinstance(command, str) and command.strip()):
        raise UsageError(
            f"{where}.command is {shown(command)}", remedy="Give a text or a list of texts"
        )
    words = [*overrides, *(_said(k, v) for k, v in given.items() if k in _CHANGES)]
    words = words if change is None else [change]
    return Entry(
        label=_label(given, where, default or ", ".join(words)),
        backend=_optional_text(given, "backend", where),
        overrides=tuple(overrides),
        own=tuple(overrides),
        sources=_sources(given.get("sources"), f"{where}.sources"),
        copies=_whole(given.get("copies", 1), f"{where}.copies"),
        command=command,
        change=", ".join(words),
    )


def _items(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise UsageError(
            f"{where} is {shown(value)}, not a list of runs", remedy="Write one `- {...}` per run"
        )
    return value


def _label(given: Mapping[str, Any], where: str, default: str) -> str:
    label = given.get("label", default)
    if not isinstance(label, str) or not label.strip():
        raise UsageError(f"{where}.label is {shown(label)}, not text", remedy="Give a short name")
    return label


def _optional_text(given: Mapping[str, Any], key: str, where: str) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise UsageError(f"{where}.{key} is {shown(value)}, not text", remedy="Give a name")
    return value


def _check_override(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise UsageError(
            f"{where} is {shown(value)}, not one override", remedy="Write key.path=value"
        )
    try:
        parse_override(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error.problem}", remedy=error.remedy) from None


def _sources(value: Any, where: str) -> int | tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    return _whole(value, where)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{where} is {shown(value)}", remedy="Give a whole number from 1 upwards")
    return value


def _said(key: str, value: Any) -> str:
    """A change in words, as it stands in the tables."""
    if key == "change":
        return str(value)
    if key == "command":
        return value if isinstance(value, str) else " ".join(map(str, value))
    return f"{key}={_yaml(value)}"


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
