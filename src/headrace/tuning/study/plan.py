"""From a study to trials. Reads the mixture; runs nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.config import Mixture
from headrace.config.documents import parse_override
from headrace.config.typed import nearest
from headrace.errors import HeadraceError, UsageError
from headrace.measure.baselines import BASELINES
from headrace.measure.bench.settings import BenchSettings
from headrace.measure.job import Job
from headrace.measure.jobs import OWN_KEYS, jobs_of
from headrace.tuning.attempt import Status
from headrace.tuning.study.document import Study, settings_from
from headrace.tuning.study.entry import Entry
from headrace.tuning.trial import Trial

__all__ = ["plan"]


class _Skip(Exception):
    """This machine or mixture has not what the row needs."""


def plan(study: Study, overrides: Sequence[str] = (), *, cpus: int) -> list[Trial]:
    """A trial for each row, the baseline first.

    `overrides` are of every run; they come after the study's own and before what a row changes. One
    that cannot be is an error; what only one row asks for wrongly makes that row invalid.
    """
    common = (*study.overrides, *overrides)
    settings, rest = _settings(study.settings, common)
    if study.mixture is not None:
        jobs_of(study.mixture, rest, [study.backend])
    return [_trial(study, entry, settings, rest, cpus) for entry in study.entries]


def _trial(
    study: Study, entry: Entry, settings: BenchSettings, common: Sequence[str], cpus: int
) -> Trial:
    backend = "command" if entry.command is not None else entry.backend or study.backend
    if study.train is not None and entry.command is None:
        return _training(study.train, entry, settings, common)
    trial = Trial(entry.label, entry.change, backend, settings=settings, command=entry.command)
    known: tuple[Status, str]
    try:
        settings, own = _settings(settings, entry.overrides)
        if entry.command is not None:
            return replace(trial, settings=settings)
        assert study.mixture is not None
        _check_effect(backend, entry)
        job = jobs_of(study.mixture, [*common, *own], [backend])[backend]
        job = replace(job, mixture=_chosen(job.mixture, entry))
        needed = max(settings.cpus or 1, 1)
        if needed > cpus:
            raise _Skip(f"needs {needed} CPUs; {cpus} are allowed here")
        return replace(trial, job=_plain(job), settings=settings)
    except _Skip as reason:
        known = "skipped", str(reason)
    except HeadraceError as error:
        known = "invalid configuration", str(error)
    return replace(trial, known=known)


def _training(
    experiment: str, entry: Entry, settings: BenchSettings, common: Sequence[str]
) -> Trial:
    """A run of `headrace train`, which checks its overrides itself."""
    asked = (f"experiment={experiment}", *common, *entry.overrides)
    command = (sys.executable, "-m", "headrace", "train", *asked)
    trial = Trial(entry.label, entry.change, "train", settings=settings, command=command)
    if entry.backend is not None or entry.sources is not None or entry.copies != 1:
        why = "backend, sources and copies are of benchmarks, and these are training runs"
        return replace(trial, known=("invalid configuration", why))
    return trial


def _settings(
    base: BenchSettings, overrides: Sequence[str]
) -> tuple[BenchSettings, tuple[str, ...]]:
    """The settings with the `bench.` overrides, and the other overrides."""
    given: dict[str, Any] = {}
    rest = []
    for override in overrides:
        head, _, key = override.partition("=")[0].strip().partition(".")
        if head == "bench":
            given[key] = parse_override(override)[1]
        else:
            rest.append(override)
    try:
        return settings_from(given, base), tuple(rest)
    except UsageError as error:
        raise UsageError(f"bench: {error.problem}", remedy=error.remedy) from None


def _check_effect(backend: str, entry: Entry) -> None:
    """A change that the row's backend never hears of would be a row about nothing."""
    for override in entry.own:
        head, _, key = override.partition("=")[0].strip().partition(".")
        other = head if head in BASELINES else None
        if head == "loader" and key in OWN_KEYS:
            other = "headrace"
        if other is not None and other != backend:
            raise UsageError(
                f"{override} is of the backend {other}, but the row runs {backend}",
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
    if entry.copies > 1:
        active = tuple(
            replace(
                source,
                name=f"{source.name}_{number + 1}",
                path=mixture.folder(source),
                version=None,
                weight=None if source.weight is None else source.weight / entry.copies,
            )
            for source in active
            for number in range(entry.copies)
        )
    return replace(mixture, sources=active)


def _plain(job: Job) -> Job:
    """The job as it will be read in another process, so that equal ones are equal."""
    return Job.from_dict(job.to_dict())
