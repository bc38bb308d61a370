"""Writing reports: the files of one run, and the page of several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.errors import DataError, UsageError
from headrace.measure.report.mixture import mixture_over_time, mixture_summary, mixture_windows
from headrace.measure.report.page import page
from headrace.measure.report.plot import Plot
from headrace.measure.report.plots import all_plots
from headrace.measure.report.runs import expand, read_runs
from headrace.measure.report.slow_tables import run_tables, switch_table
from headrace.measure.runs import Run, read_run

__all__ = ["write_comparison", "write_run_report"]

#: With more runs than this in one page, mixtures over time stay in the runs' own reports.
_MIXTURES = 6


def write_run_report(folder: Path) -> Path:
    """Write plots/*.svg, the three mixture files and report.html into a run folder; the page.

    A folder of a comparison gets a report in each run in it and the comparison as its own page.
    What is missing or damaged in a run is named in the page, and the rest is shown.
    """
    folder = Path(folder)
    inside, _ = expand([folder])
    if inside != [folder]:
        for path in inside:
            _write_one(read_run(path))
        return write_comparison([folder], folder / "report.html")
    return _write_one(read_run(folder))


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs; where it was written.

    Folders that are no runs are named in the page; it is an error only if none is one.
    """
    runs, ranges, failures = read_runs(folders)
    if not runs:
        raise (
            failures[0]
            if failures
            else DataError(
                f"no run in {', '.join(repr(str(folder)) for folder in folders) or 'nothing'}",
                remedy="Give one or more, or the folder of a comparison",
            )
        )
    plots = all_plots(runs)
    if len(runs) <= _MIXTURES:
        plots += [mixture_over_time(run, f"mixture_over_time_{n}") for n, run in enumerate(runs, 1)]
    title = f"{len(runs)} runs compared" if len(runs) > 1 else f"Run {runs[0].label}"
    out = Path(out)
    tables = run_tables(runs[0]) if len(runs) == 1 else [switch_table(runs)]
    _write(out, page(title, runs, plots, ranges, [str(error) for error in failures], tables))
    return out


def _write_one(run: Run) -> Path:
    plots = all_plots([run])
    mixtures = [mixture_over_time(run), mixture_windows(run)]
    for plot in plots:
        _write(run.folder / "plots" / f"{plot.name}.svg", plot.file())
    for plot in mixtures:
        _write(run.folder / f"{plot.name}.svg", plot.file())
    _write(run.folder / "mixture_summary.txt", mixture_summary(run))
    shown: list[Plot] = [*plots, *mixtures]
    text = page(f"Run {run.label}", [run], shown, tables=run_tables(run))
    return _write(run.folder / "report.html", text)


def _write(path: Path, text: str) -> Path:
    """Write aside and rename: whoever has the page open never sees half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, "utf-8")
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror}",
            remedy="Check the folder's permissions and free space, or give another with --out",
        ) from None
    return path
