"""Studies as people write them: YAML to a frozen `Study`; errors name the key path.

name: threads
about: does a second CPU help?
mixture: oxe29                    # packaged, or a path: beside this file, then from here
overrides: [loader.batch_size=64] # of every run; those of the command line come after
seconds: 8
guard: {min_available: 2GiB}
baseline: {label: one CPU, overrides: [bench.cpus=1]}
ladder:
  - {label: two CPUs, change: bench.cpus=2}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.config.documents import overridden, parse_override, read_document
from headrace.config.typed import mapping, shown
from headrace.errors import UsageError
from headrace.loader.options import parse_size
from headrace.measure.job import BenchSettings
from headrace.tuning.guard import Guard
from headrace.tuning.study.entry import (
    Entry,
    baseline_entry,
    grid_entries,
    ladder_entries,
    run_entries,
)

__all__ = ["Study", "packaged_studies", "read_study"]

_SETTINGS = tuple(each.name for each in fields(BenchSettings) if each.name != "timeout_s")
_KINDS = ("ladder", "grid", "runs")
_GUARD_KEYS = tuple(each.name for each in fields(Guard))
KEYS = ("name", "about", "train", "mixture", "overrides", "backend", *_SETTINGS, "repeats", "guard")
KEYS += ("baseline", *_KINDS)
#: What a run of a study measures if the file says nothing: enough for 20 to 30 batches a second.
_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Study:
    """Configurations to be run one after the other, and under which guard."""

    name: str
    about: str
    kind: str  #: ladder, grid or runs
    mixture: str | None  #: None: all runs are commands, or training runs
    overrides: tuple[str, ...]
    backend: str
    settings: BenchSettings
    repeats: int
    guard: Guard
    entries: tuple[Entry, ...]  #: the baseline first
    train: str | None = None  #: an experiment: runs are of `headrace train`, as are the overrides

    @property
    def baseline(self) -> str:
        """The label of the row that others are compared with."""
        return self.entries[0].label


def packaged_studies() -> dict[str, Path]:
    """The studies that come with headrace, by name."""
    folder = Path(str(resources.files("headrace").joinpath("tuning/studies")))
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def read_study(study: str | Path, more: Sequence[str] = ()) -> Study:
    """Read a study file, or the packaged one of that name, with `more` rows as YAML texts."""
    packaged = packaged_studies()
    file = Path(study).expanduser()
    if str(study) in packaged and not file.is_file():
        file = packaged[str(study)]
    try:
        values = read_document(file, "study", list(packaged), "ladder")
        rows = _with_rows(overridden(values, (), "study"), more)
        return study_from(rows, file.parent, file.stem)
    except UsageError as error:
        raise error.within(file=str(file)) from None


def _with_rows(values: Mapping[str, Any], more: Sequence[str]) -> Mapping[str, Any]:
    """A study with rows after its own."""
    if not more:
        return values
    kind = next((kind for kind in ("ladder", "runs") if isinstance(values.get(kind), list)), None)
    if kind is None:
        raise UsageError("there is no list to add rows to", remedy="Add them to a ladder or runs.")
    return {**values, kind: [*values[kind], *(parse_override(f"row={text}")[1] for text in more)]}


def study_from(values: Mapping[str, Any], folder: Path | None = None, name: str = "study") -> Study:
    """From plain values; a mixture's relative path is looked for in `folder` first."""
    top = mapping(values, "the study", KEYS)
    kinds = [kind for kind in _KINDS if kind in top]
    if len(kinds) != 1:
        raise UsageError(
            f"the study has {' and '.join(kinds) or 'nothing to run'}",
            remedy=f"Give one of {', '.join(_KINDS)}.",
        )
    entries = _entries(top, kinds[0])
    _check_labels(entries, kinds[0])
    mixture = _text(top, "mixture", None)
    train = _text(top, "train", None)
    if train is not None and (mixture is not None or "backend" in top):
        raise UsageError(
            "train and mixture, or backend, are both given",
            remedy="What is trained on is of the experiment: overrides: [data.mixture=oxe29]",
        )
    if mixture is None and train is None and any(entry.command is None for entry in entries):
        raise UsageError(
            "mixture is missing",
            remedy="Give a packaged name (oxe29) or a file; for training runs, train: EXPERIMENT",
        )
    if mixture is not None and folder is not None and (folder / mixture).is_file():
        mixture = str(folder / mixture)
    overrides = baseline_entry({"overrides": top.get("overrides")}).overrides
    repeats = top.get("repeats", 3)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise UsageError(f"repeats is {shown(repeats)}", remedy="Give a number from 1 upwards")
    return Study(
        name=_text(top, "name", name) or name,
        about=_text(top, "about", "") or "",
        kind=kinds[0],
        mixture=mixture,
        overrides=overrides,
        backend=_text(top, "backend", "headrace") or "headrace",
        settings=settings_from({key: top[key] for key in _SETTINGS if key in top}),
        repeats=repeats,
        guard=_guard(top.get("guard") or {}),
        entries=entries,
        train=train,
    )


def settings_from(given: Mapping[str, Any], base: BenchSettings | None = None) -> BenchSettings:
    """Settings with some of them given; `steps` and `seconds` exclude each other."""
    base = base or BenchSettings(seconds=_SECONDS)
    for key, value in given.items():
        if key not in _SETTINGS:
            raise mapping_error(key)
        whole = key in ("steps", "warmup", "cpus", "validate_every", "validate_batches")
        kinds = (int,) if whole else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
        if not good:
            wanted = "a whole number" if whole else "a number"
            raise UsageError(f"{key} is {shown(value)}", remedy=f"Give {wanted}.")
    one = {"steps": {"seconds": None}, "seconds": {"steps": None}}
    other = next((one[key] for key in one if key in given), {})
    return replace(base, **{**other, **given})


def mapping_error(key: str) -> UsageError:
    """The error for a `bench.` key that does not exist."""
    try:
        mapping({key: None}, "bench", _SETTINGS)
    except UsageError as error:
        return error
    raise AssertionError


def _entries(top: Mapping[str, Any], kind: str) -> tuple[Entry, ...]:
    if kind == "ladder":
        baseline = baseline_entry(top.get("baseline") or {})
        return (baseline, *ladder_entries(top["ladder"], baseline))
    entries = grid_entries(top["grid"]) if kind == "grid" else run_entries(top["runs"])
    if "baseline" not in top:
        return entries
    return (baseline_entry(top["baseline"]), *entries)


def _check_labels(entries: Sequence[Entry], kind: str) -> None:
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(
                f"two rows of the {kind} are called {label!r}", remedy="Give each its own label."
            )


def _guard(value: Any) -> Guard:
    given = mapping(value, "guard", _GUARD_KEYS)
    if "min_available" in given:
        size = given["min_available"]
        try:
            if isinstance(size, bool) or not isinstance(size, int | str):
                raise UsageError("", remedy="Write for example 5GiB")
            given["min_available"] = parse_size(size)
        except UsageError as error:
            raise UsageError(
                f"guard.min_available is {shown(size)}, no size", remedy=error.remedy
            ) from None
    for key in ("stall_seconds", "timeout_s", "grace_s"):
        value = given.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"guard.{key} is {shown(value)}", remedy="Give seconds above 0")
    return Guard(**given)


def _text(top: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = top.get(key, default)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{key} is {shown(value)}, not text", remedy="Give a text.")
    return value
