"""Several runs: comparisons taken apart, labels that differ, figures over repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.measure.columns import finite
from headrace.measure.results import Run, read_run
from headrace.measure.runs import RUN_FILES, objects, read_object


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over repeated runs."""

    median: float
    low: float
    high: float
    runs: int


def read_runs(
    folders: Sequence[Path],
) -> tuple[list[Run], dict[str, dict[str, Range]], list[HeadraceError]]:
    """Runs with labels that differ, the comparisons' figures, and what could not be read."""
    inside, ranges = expand(Path(folder) for folder in folders)
    runs: list[Run] = []
    failures: list[HeadraceError] = []
    for folder in inside:
        try:
            runs.append(read_run(folder))
        except HeadraceError as error:
            failures.append(error)
    return named_apart(runs), ranges, failures


def expand(folders: Iterable[Path]) -> tuple[list[Path], dict[str, dict[str, Range]]]:
    """Run folders, a comparison replaced by the runs in it; and the comparisons' own figures."""
    found: list[Path] = []
    ranges: dict[str, dict[str, Range]] = {}
    for folder in folders:
        result, _ = read_object(folder / "result.json")
        if not isinstance(result.get("comparison"), dict):
            found.append(folder)
            continue
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        found.extend(p for p in inside if any((p / name).exists() for name in RUN_FILES))
        for backend, figures in objects(result["comparison"]):
            ranges.setdefault(backend, {}).update(_ranges(figures))
    unique = {path.resolve(): path for path in reversed(found)}
    return [path for path in found if unique[path.resolve()] is path], ranges


def named_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs with labels that differ: names, else folders, else numbered."""
    for name in (lambda r: r.label, lambda r: r.folder.resolve().name, _tail):
        labels = [name(run) for run in runs]
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [f"{label} ({number})" for number, label in enumerate(labels, 1)]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _tail(run: Run) -> str:
    return "/".join(run.folder.resolve().parts[-2:])


def _ranges(figures: Mapping[str, Any]) -> dict[str, Range]:
    ranges = {}
    for key, figure in objects(figures):
        median = finite(figure.get("median"))
        if median is not None:
            low, high = finite(figure.get("min")), finite(figure.get("max"))
            runs = figure.get("runs")
            ranges[key] = Range(
                median,
                median if low is None else low,
                median if high is None else high,
                len(runs) if isinstance(runs, list) else 1,
            )
    return ranges
