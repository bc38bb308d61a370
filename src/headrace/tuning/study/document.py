"""Study files: YAML into a frozen `Study`, and the trials that follow from one.

name: cpus
about: Does a second CPU help?
mixture: oxe29                     # packaged, or a path: beside this file, else from here
overrides: [loader.batch_size=64]  # of every run; those of the command line come after them
steps: 160                         # batches measured; `seconds`, instead or as a limit
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
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from headrace.config import Mixture
from headrace.config.documents import is_inline, overridden, parse_override, read_document
from headrace.config.typed import nearest, shown, typed
from headrace.errors import HeadraceError, UsageError
from headrace.measure.baselines import BASELINES
from headrace.measure.job import OWN_KEYS, BenchSettings, Job, jobs_of
from headrace.measure.runs import Status
from headrace.tuning.study.trial import Guard, Trial

#: What a run of a study measures if the file does not say. 160 batches are what users of tf.data
#: found to be the least; the time limit is for loaders that are slower than a batch a second.
_STEPS, _SECONDS = 160, 120.0
_KINDS = ("ladder", "grid", "runs")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row as the file has it: what it adds to the study's settings, or to those of its base."""

    label: str | None = None
    against: str | None = None  #: the label of its base; None: the baseline
    change: str | None = None  #: one override
    overrides: tuple[str, ...] = ()
    backend: str | None = None
    sources: int | tuple[str, ...] | None = None  #: the first so many of the mixture, or these
    copies: int | None = None  #: of each source: the same data as that many sources
    command: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.label is not None and not self.label.strip():
            raise UsageError("label is empty", remedy="Give a short name")
        for override in self.own:
            parse_override(override)
        for key in ("sources", "copies"):
            value = getattr(self, key)
            if value == () or (isinstance(value, int) and value < 1):
                raise UsageError(f"{key} is {shown(value)}", remedy="Give a number from 1 upwards")
        if self.command is not None and not "".join(self.command).strip():
            raise UsageError("command is empty", remedy="Give a text or a list of texts")

    @property
    def own(self) -> tuple[str, ...]:
        """The overrides that it adds."""
        return (*self.overrides, *([self.change] if self.change is not None else []))

    @property
    def words(self) -> list[str]:
        """What it changes, as it stands in the tables."""
        found = list(self.own)
        for key in ("backend", "sources", "copies"):
            if (value := getattr(self, key)) is not None:
                found.append(f"{key}={_yaml(value)}")
        if self.command is not None:
            found.append(self.command if isinstance(self.command, str) else " ".join(self.command))
        return found


class _Row(NamedTuple):
    """A run in full, and how it differs from the row it is compared with."""

    label: str
    entry: Entry
    change: str = ""
    own: tuple[str, ...] = ()  #: the overrides that it does not share with that row
    against: str | None = None  #: None: it is the baseline


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
    ladder: tuple[Entry, ...] = ()
    grid: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [kind for kind in _KINDS if getattr(self, kind)]
        if len(kinds) != 1:
            raise UsageError(
                f"the study has {' and '.join(kinds) or 'nothing to run'}",
                remedy=f"Give one of {', '.join(_KINDS)}.",
            )
        if self.repeats < 1:
            raise UsageError(f"repeats is {self.repeats}", remedy="Give a number from 1 upwards")
        for override in self.overrides:
            parse_override(override)
        rows = self.rows()
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
        return BenchSettings(
            **{each.name: getattr(self, each.name) for each in fields(BenchSettings)}
        )

    def rows(self) -> tuple[_Row, ...]:
        """Every row, the one that others are compared with first."""
        if self.ladder:
            given = [(f"ladder[{n}]", entry) for n, entry in enumerate(self.ladder)]
            first = self.baseline or Entry()
        else:
            entries = _grid(self.grid) if self.grid else self.runs
            given = [(f"runs[{n}]", entry) for n, entry in enumerate(entries)]
            first = self.baseline or given.pop(0)[1]
        named = bool(self.ladder) or self.baseline is not None
        label = first.label or ("baseline" if named else ", ".join(first.words)) or "baseline"
        rows = {label: _Row(label, first, "" if named else ", ".join(first.words), first.own)}
        for where, entry in given:
            row = _row(where, entry, label, rows, on_base=bool(self.ladder))
            if row.label in rows:
                raise UsageError(
                    f"{where}: another row is called {row.label!r}, too",
                    remedy="Give each its own label.",
                )
            rows[row.label] = row
        return tuple(rows.values())


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
        raise UsageError(error.problem, remedy=error.remedy, file=str(file)) from None
    return replace(found, overrides=(*found.overrides, *overrides))


def study_from(values: Mapping[str, Any], folder: Path | None = None, name: str = "study") -> Study:
    """From plain values; a mixture's relative path is looked for in `folder` first."""
    given = values.get("steps") is not None or values.get("seconds") is not None
    length = {"seconds": None} if given else {"seconds": _SECONDS, "steps": _STEPS}
    study = typed(Study, {"name": name, **length, **values})
    if folder is None or study.mixture is None or is_inline(study.mixture):
        return study
    if (folder / study.mixture).is_file():
        study = replace(study, mixture=str(folder / study.mixture))
    return study


def _row(
    where: str, entry: Entry, baseline: str, before: Mapping[str, _Row], *, on_base: bool
) -> _Row:
    """A row, in a ladder as its base with the change."""
    against = entry.against or baseline
    if against not in before:
        raise UsageError(
            f"{where}.against is {against!r}, not the label of a row before it",
            remedy=f"{nearest(against, before)}Rows before it: {', '.join(before)}.",
        )
    words = entry.words
    if not words and (on_base or not entry.label):
        raise UsageError(
            f"{where} changes nothing",
            remedy="Give change, overrides, backend, sources, copies or command",
        )
    base = before[against].entry if on_base else Entry()
    full = Entry(
        overrides=(*base.own, *entry.own),
        backend=entry.backend or base.backend,
        sources=base.sources if entry.sources is None else entry.sources,
        copies=base.copies if entry.copies is None else entry.copies,
        command=entry.command or base.command,
    )
    return _Row(entry.label or ", ".join(words), full, ", ".join(words), entry.own, against)


def _grid(axes: Mapping[str, Any]) -> list[Entry]:
    """Every combination of the values."""
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(
                f"grid.{key} is {shown(values)}, not a list of values",
                remedy=f"Write `{key}: [a, b]`",
            )
    entries = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        label = ", ".join(f"{k.rpartition('.')[2]}={_yaml(v)}" for k, v in chosen.items())
        backend = chosen.pop("backend", None)
        given = tuple(f"{key}={_yaml(value)}" for key, value in chosen.items())
        entries.append(Entry(label=label, backend=backend, overrides=given))
    return entries


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
    left_out: set[str] = set()
    if study.mixture is not None:
        backends = [study.backend or "headrace"]
        every = [each for each in common if each.partition("=")[0].strip() != "only"]
        chosen, whole = (jobs_of(study.mixture, given, backends) for given in (common, every))
        left_out = _names(whole) - _names(chosen)
    return [_trial(study, row, settings, common, cpus, left_out) for row in study.rows()]


def _names(jobs: Mapping[str, Job]) -> set[str]:
    return {source.name for job in jobs.values() for source in job.mixture.active}


def _trial(
    study: Study,
    row: _Row,
    settings: BenchSettings,
    common: Sequence[str],
    cpus: int,
    left_out: set[str],
) -> Trial:
    entry, backend = row.entry, row.entry.backend or study.backend or "headrace"
    trial = Trial(row.label, row.change, backend, settings=settings, against=row.against)
    known: tuple[Status, str]
    try:
        if study.train is not None and entry.command is None:
            return replace(trial, backend="train", command=_training(study.train, entry, common))
        settings, own = _split(settings, entry.own)
        if entry.command is not None:
            return replace(trial, backend="command", settings=settings, command=entry.command)
        assert study.mixture is not None
        _check_effect(backend, row.own)
        job = jobs_of(study.mixture, [*common, *own], [backend])[backend]
        job = replace(job, mixture=_chosen(job.mixture, entry, left_out))
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
    # Which sources to take is an override of the mixture, and of an experiment's data.
    given = (f"data.{each}" if each.startswith("only=") else each for each in common)
    return (*train, *given, *entry.own)


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
    return typed(BenchSettings, {**asdict(base), **given}, "bench"), tuple(rest)


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


def _chosen(mixture: Mixture, entry: Entry, left_out: set[str]) -> Mixture:
    """The mixture with some of its sources, or several of each."""
    active = mixture.active
    if isinstance(entry.sources, int):
        if entry.sources > len(active):
            raise _Skip(f"needs {entry.sources} sources; the mixture has {len(active)}")
        active = active[: entry.sources]
    elif entry.sources is not None:
        if missing := sorted(left_out.intersection(entry.sources)):
            raise _Skip(f"needs sources that were not selected: {', '.join(missing)}")
        active = mixture.only(entry.sources).active
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
