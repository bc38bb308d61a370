"""Study files: YAML into a frozen `Study`, and the trials that follow from one.

name: cpus
about: Does a second CPU help?
mixture: oxe29                     # packaged, or a path: beside this file, else from here
overrides: [loader.batch_size=64]  # of every run; those of the command line come after them
seconds: 8
guard: {min_available: 2GiB}
baseline: {label: one CPU, overrides: [bench.cpus=1]}
ladder:
  - {label: two CPUs, change: bench.cpus=2}
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.config import Mixture
from headrace.config.documents import overridden, parse_override, read_document
from headrace.config.typed import nearest, shown, typed
from headrace.errors import HeadraceError, UsageError
from headrace.measure.baselines import BASELINES
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.job import Job
from headrace.measure.jobs import OWN_KEYS, jobs_of
from headrace.tuning.study.trial import Guard, Status, Trial

__all__ = ["Entry", "Rung", "Study", "packaged_studies", "plan", "read_study", "study_from"]

#: What a run of a study measures if the file does not say: 20 to 30 batches a second are enough.
_SECONDS = 8.0
_KINDS = ("ladder", "grid", "runs")
#: What a row can change about its base.
_CHANGES = ("backend", "change", "sources", "copies", "command")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run, written out: what it adds to the study's own settings."""

    label: str | None = None
    backend: str | None = None
    overrides: tuple[str, ...] = ()
    sources: int | tuple[str, ...] | None = None  #: the first so many of the mixture, or these
    copies: int | None = None  #: of each source: the same data as that many sources
    command: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for number, override in enumerate(self.overrides):
            _check_override(override, f"overrides[{number}]")
        _check_change(self)


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A row of a ladder: the baseline, or the row named in `against`, with one change."""

    label: str | None = None
    against: str | None = None
    change: str | None = None
    backend: str | None = None
    sources: int | tuple[str, ...] | None = None
    copies: int | None = None
    command: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not _words(self):
            raise UsageError("it changes nothing", remedy=f"Give one of {', '.join(_CHANGES)}")
        if self.change is not None:
            _check_override(self.change, "change")
        _check_change(self)


@dataclass(frozen=True)
class _Row:
    """A run with its name, and how it differs from the row it is compared with."""

    label: str
    entry: Entry
    change: str = ""
    own: tuple[str, ...] = ()  #: the overrides that it does not share with that row
    against: str | None = None  #: None: the baseline


@dataclass(frozen=True, kw_only=True)
class Study(BenchSettings):
    """Configurations to run one after the other: settings of every run, a guard, and the rows."""

    name: str = "study"
    about: str = ""
    mixture: str | None = None  #: None: all runs are commands, or training runs
    train: str | None = None  #: an experiment: the runs are those of `headrace train`
    overrides: tuple[str, ...] = ()
    backend: str | None = None  #: None: headrace
    repeats: int = 3
    guard: Guard = field(default_factory=Guard)
    baseline: Entry | None = None  #: None: the first row of a grid or of runs
    ladder: tuple[Rung, ...] | None = None
    grid: Mapping[str, Any] | None = None
    runs: tuple[Entry, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise UsageError(
                f"the study has {' and '.join(kinds) or 'nothing to run'}",
                remedy=f"Give one of {', '.join(_KINDS)}.",
            )
        if not getattr(self, kinds[0]):
            raise UsageError(f"{kinds[0]} is empty", remedy="Give at least one row")
        if self.repeats < 1:
            raise UsageError(f"repeats is {self.repeats}", remedy="Give a number from 1 upwards")
        for number, override in enumerate(self.overrides):
            _check_override(override, f"overrides[{number}]")
        rows = self.rows()
        labels = [row.label for row in rows]
        for label in labels:
            if labels.count(label) > 1:
                raise UsageError(
                    f"two rows are called {label!r}", remedy="Give each its own label."
                )
        if self.train is not None and (self.mixture is not None or self.backend is not None):
            raise UsageError(
                "train is given together with mixture or backend",
                remedy="The experiment says what is trained on: overrides: [data.mixture=oxe29]",
            )
        programs = self.train is not None or all(row.entry.command is not None for row in rows)
        if self.mixture is None and not programs:
            raise UsageError(
                "mixture is missing",
                remedy="Give a packaged name (oxe29) or a file; for training runs, "
                "train: EXPERIMENT",
            )

    @property
    def settings(self) -> BenchSettings:
        """The settings of every run."""
        return BenchSettings(**{each.name: getattr(self, each.name) for each in fields(BenchSettings)})

    def rows(self) -> tuple[_Row, ...]:
        """Every row, the one that others are compared with first."""
        if self.ladder is not None:
            return _ladder(self.baseline or Entry(), self.ladder)
        rows = _grid(self.grid) if self.grid is not None else _runs(self.runs or ())
        if self.baseline is None:
            return rows
        return (_Row(self.baseline.label or "baseline", self.baseline), *rows)


# -- reading -------------------------------------------------------------------------------------


def packaged_studies() -> dict[str, Path]:
    """The studies that come with headrace, by name."""
    folder = Path(str(resources.files("headrace").joinpath("tuning/studies")))
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def read_study(
    study: str | Path, overrides: Sequence[str] = (), more_rows: Sequence[str] = ()
) -> Study:
    """Read a study file, or the packaged one of that name.

    `overrides` (of every run) come after the study's own; `more_rows` are rows as YAML texts.
    """
    packaged = packaged_studies()
    file = Path(study).expanduser()
    if str(study) in packaged and not file.is_file():
        file = packaged[str(study)]
    try:
        values = overridden(read_document(file, "study", list(packaged), "ladder"), (), "study")
        if more_rows:
            kind = next((k for k in ("ladder", "runs") if isinstance(values.get(k), list)), None)
            if kind is None:
                raise UsageError("no list to add rows to", remedy="Add them to a ladder or runs.")
            values[kind] += [parse_override(f"row={text}")[1] for text in more_rows]
        found = study_from(values, file.parent, file.stem)
    except UsageError as error:
        raise error.within(file=str(file)) from None
    return replace(found, overrides=(*found.overrides, *overrides))


def study_from(values: Mapping[str, Any], folder: Path | None = None, name: str = "study") -> Study:
    """From plain values; a mixture's relative path is looked for in `folder` first."""
    seconds = None if values.get("steps") is not None else _SECONDS
    study = typed(Study, {"name": name, "seconds": seconds, **values})
    if study.mixture is not None and folder is not None and (folder / study.mixture).is_file():
        study = replace(study, mixture=str(folder / study.mixture))
    return study


def _ladder(first: Entry, rungs: Sequence[Rung]) -> tuple[_Row, ...]:
    """Each row is its base with exactly one change."""
    found = {(label := first.label or "baseline"): _Row(label, first)}
    rows = [found[label]]
    for number, rung in enumerate(rungs):
        if rung.against is not None and rung.against not in found:
            raise UsageError(
                f"ladder[{number}].against is {rung.against!r}, not the label of a row before it",
                remedy=f"{nearest(rung.against, found)}Rows before it: {', '.join(found)}.",
            )
        base = found[rung.against or label].entry
        own = (rung.change,) if rung.change else ()
        words = _words(rung)
        entry = Entry(
            label=rung.label,
            backend=rung.backend or base.backend,
            overrides=(*base.overrides, *own),
            sources=base.sources if rung.sources is None else rung.sources,
            copies=base.copies if rung.copies is None else rung.copies,
            command=rung.command or base.command,
        )
        rows.append(_Row(rung.label or " ".join(words), entry, ", ".join(words), own, rung.against))
        found[rows[-1].label] = rows[-1]
    return tuple(rows)


def _grid(axes: Mapping[str, Any]) -> tuple[_Row, ...]:
    """Every combination of the values."""
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(
                f"grid.{key} is {shown(values)}, not a list of values",
                remedy=f"Write `{key}: [a, b]`",
            )
    rows = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        words = [f"{key}={_yaml(value)}" for key, value in chosen.items()]
        overrides = tuple(word for word in words if not word.startswith("backend="))
        label = ", ".join(word.rpartition(".")[2] for word in words)
        entry = Entry(backend=chosen.get("backend"), overrides=overrides)
        rows.append(_Row(label, entry, ", ".join(words), overrides))
    return tuple(rows)


def _runs(entries: Sequence[Entry]) -> tuple[_Row, ...]:
    rows = []
    for number, entry in enumerate(entries):
        words = ", ".join([*entry.overrides, *_words(entry)])
        if not (entry.label or words):
            raise UsageError(f"runs[{number}].label is missing", remedy="Give a short name")
        rows.append(_Row(entry.label or words, entry, words, entry.overrides))
    return tuple(rows)


def _check_override(text: str, where: str) -> None:
    try:
        parse_override(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.problem}", remedy=error.remedy) from None


def _check_change(row: Entry | Rung) -> None:
    """What every row may say beside its overrides."""
    if row.label is not None and not row.label.strip():
        raise UsageError("label is empty", remedy="Give a short name")
    for key in ("sources", "copies"):
        value = getattr(row, key)
        if value == () or (isinstance(value, int) and value < 1):
            raise UsageError(f"{key} is {shown(value)}", remedy="Give a number from 1 upwards")
    if row.command is not None and not (row.command and "".join(row.command).strip()):
        raise UsageError("command is empty", remedy="Give a text or a list of texts")


def _words(row: Entry | Rung) -> list[str]:
    """The changes of a row, as they stand in the tables."""
    words = []
    for key in _CHANGES:
        value = getattr(row, key, None)
        if key == "change" and value is not None:
            words.append(value)
        elif key == "command" and value is not None:
            words.append(value if isinstance(value, str) else " ".join(value))
        elif value is not None:
            words.append(f"{key}={_yaml(value)}")
    return words


def _yaml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_yaml, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


# -- planning ------------------------------------------------------------------------------------


class _Skip(Exception):
    """This machine or mixture does not have what the row needs."""


def plan(study: Study, *, cpus: int) -> list[Trial]:
    """A trial for each row, the baseline first. Reads the mixture; runs nothing.

    An override of every run that is wrong is an error; what is wrong with a single row makes that
    row an invalid configuration.
    """
    settings, common = _split(study.settings, study.overrides)
    if study.mixture is not None:
        jobs_of(study.mixture, common, [study.backend or "headrace"])
    first, *others = study.rows()
    others = [replace(row, against=row.against or first.label) for row in others]
    return [_trial(study, row, settings, common, cpus) for row in (first, *others)]


def _trial(
    study: Study, row: _Row, settings: BenchSettings, common: Sequence[str], cpus: int
) -> Trial:
    entry, backend = row.entry, row.entry.backend or study.backend or "headrace"
    trial = Trial(row.label, row.change, backend, settings=settings, against=row.against)
    known: tuple[Status, str]
    try:
        if study.train is not None and entry.command is None:
            return replace(
                trial, backend="train", command=_training(study.train, entry, common)
            )
        settings, own = _split(settings, entry.overrides)
        if entry.command is not None:
            return replace(trial, backend="command", settings=settings, command=entry.command)
        assert study.mixture is not None
        _check_effect(backend, row.own)
        job = jobs_of(study.mixture, [*common, *own], [backend])[backend]
        job = replace(job, mixture=_chosen(job.mixture, entry))
        if (settings.cpus or 1) > cpus:
            raise _Skip(f"needs {settings.cpus} CPUs; {cpus} are allowed here")
        # As another process will read it, so that equal jobs are equal.
        return replace(trial, job=Job.from_dict(job.to_dict()), settings=settings)
    except _Skip as reason:
        known = "skipped", str(reason)
    except HeadraceError as error:
        known = "invalid configuration", str(error)
    return replace(trial, known=known)


def _training(experiment: str, entry: Entry, common: Sequence[str]) -> tuple[str, ...]:
    """The command of a training run, which checks its overrides itself."""
    if entry.backend is not None or entry.sources is not None or entry.copies is not None:
        raise UsageError(
            "backend, sources and copies belong to benchmarks, and this is a training run",
            remedy="Write an override of the experiment instead",
        )
    train = (sys.executable, "-m", "headrace", "train", f"experiment={experiment}")
    return (*train, *common, *entry.overrides)


def _split(base: BenchSettings, overrides: Sequence[str]) -> tuple[BenchSettings, tuple[str, ...]]:
    """The settings with the `bench.` overrides, and the other overrides."""
    given: dict[str, Any] = {}
    rest = []
    for override in overrides:
        key, _, _ = override.partition("=")
        if key.strip().startswith("bench."):
            given[key.strip().removeprefix("bench.")] = parse_override(override)[1]
        else:
            rest.append(override)
    for one, other in (("steps", "seconds"), ("seconds", "steps")):
        if one in given:
            given.setdefault(other, None)
    values = {each.name: getattr(base, each.name) for each in fields(BenchSettings)}
    return typed(BenchSettings, {**values, **given}, "bench"), tuple(rest)


def _check_effect(backend: str, overrides: Sequence[str]) -> None:
    """Refuse a change that the row's backend would ignore: the row would compare nothing."""
    for override in overrides:
        head, _, key = override.partition("=")[0].strip().partition(".")
        other = head if head in BASELINES else None
        if head == "loader" and key in OWN_KEYS:
            other = "headrace"
        if other is not None and other != backend:
            raise UsageError(
                f"{override} is an option of the backend {other}, but the row runs {backend}",
                remedy=f"Add `backend: {other}` to the row, or remove the override",
            )


def _chosen(mixture: Mixture, entry: Entry) -> Mixture:
    """The mixture with some of its sources, or several of each."""
    active = mixture.active
    if isinstance(entry.sources, int):
        if entry.sources > len(active):
            raise _Skip(f"needs {entry.sources} sources; the mixture has {len(active)}")
        active = active[: entry.sources]
    elif entry.sources is not None:
        names = {source.name: source for source in active}
        for name in entry.sources:
            if name not in names:
                raise UsageError(
                    f"the mixture has no source {name!r}",
                    remedy=f"{nearest(name, names)}Sources: {', '.join(names)}.",
                )
        active = tuple(names[name] for name in entry.sources)
    copies = entry.copies or 1
    if copies > 1:
        active = tuple(
            replace(
                source,
                name=f"{source.name}_{number + 1}",
                path=mixture.folder(source),
                version=None,
                weight=None if source.weight is None else source.weight / copies,
            )
            for source in active
            for number in range(copies)
        )
    return replace(mixture, sources=active)
