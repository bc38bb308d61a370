"""Reports as files: the figures, the summary and the page of a run, and the page of several.

A page is one file that needs no network and no script, and can be read on paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from headrace.catalog.manifest import UNCHECKED, some_of
from headrace.errors import DataError, HeadraceError, UsageError
from headrace.files import atomic_write
from headrace.measure import theme
from headrace.measure.columns import finite
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.charts import Plot
from headrace.measure.report.comparison import Range, expand, read_runs
from headrace.measure.report.figures import (
    mixture_over_time,
    mixture_windows,
    mixtures_over_time,
    run_figures,
)
from headrace.measure.report.tables import (
    COLUMNS,
    gpu_table,
    mixture_summary,
    run_tables,
    summary_cells,
    switch_table,
)
from headrace.measure.results import Run, read_run
from headrace.measure.runs import inner
from headrace.measure.verdict import comparison_verdict

#: With more runs than this in one page, mixtures over time are in the runs' own reports only.
_MIXTURES = 6


def write_run_report(folder: Path) -> Path:
    """Write plots/*.svg, the three mixture files and report.html into a run folder; the page.

    The folder of a comparison gets a report in each run in it and the comparison as its own page.
    What is missing or damaged in a run is named in the page, and the rest is shown. Without the
    extra `plots` only mixture_summary.txt is written, and the error says so.
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

    Folders that are not runs are named in the page; it is an error only if none is one.
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
    _require_plots()
    plots = run_figures(runs)
    if len(runs) <= _MIXTURES:
        plots += mixtures_over_time(runs)
    return _write(Path(out), _page(runs, plots, ranges, failures))


def _write_one(run: Run) -> Path:
    _write(run.folder / "mixture_summary.txt", mixture_summary(run))
    _require_plots()
    plots = run_figures([run])
    mixtures = [mixture_over_time(run), mixture_windows(run)]
    for plot in plots:
        _write(run.folder / "plots" / f"{plot.name}.svg", plot.svg.file())
    for plot in mixtures:
        _write(run.folder / f"{plot.name}.svg", plot.svg.file())
    return _write(run.folder / "report.html", _page([run], [*plots, *mixtures]))


def _require_plots() -> None:
    theme.require("The page of a report", "jinja2")


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text, durable=False)  # it can be drawn again
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror}",
            remedy="Check the folder's permissions and free space, or give another with --out",
        ) from None
    return path


def _page(
    runs: Sequence[Run],
    plots: Sequence[Plot],
    ranges: Mapping[str, Mapping[str, Range]] | None = None,
    failures: Sequence[HeadraceError] = (),
) -> str:
    import jinja2
    from markupsafe import Markup, escape

    def safe(value: Any) -> Any:
        return value if isinstance(value, Markup) else theme.printable(str(value))

    environment = jinja2.Environment(
        autoescape=True, finalize=safe, undefined=jinja2.StrictUndefined
    )
    environment.filters["markup"] = Markup
    environment.filters["lines"] = lambda text: Markup("\n").join(
        escape(theme.printable(line)) for line in text.expandtabs(4).splitlines()
    )
    one = len(runs) == 1
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    return environment.from_string(template).render(
        title=f"Run {runs[0].label}" if one else f"{len(runs)} runs compared",
        css=Markup(theme.CSS),
        lead="" if one else comparison_verdict(runs, ranges or {}),
        origin=_origin(runs[0]) if one else "",
        problems=[
            *map(str, failures),
            *(f"{run.label}: {p}" for run in runs for p in run.problems),
        ],
        columns=COLUMNS,
        summary=[{"cells": summary_cells(run), "about": _about(run)} for run in runs],
        repeats=_repeats(ranges or {}),
        plots=plots,
        tables=run_tables(runs[0]) if one else [switch_table(runs)],
        gpu=gpu_table(runs),
        details=[_details(run) for run in runs],
    )


def _repeats(ranges: Mapping[str, Mapping[str, Range]]) -> dict[str, Any] | None:
    """Figures of backends over repeated runs; None where nothing was repeated."""
    if not any(figure.runs > 1 for figures in ranges.values() for figure in figures.values()):
        return None
    every = (
        ("samples_per_s", "samples/s", amount),
        ("limit_ratio", "of decode limit", share),
        ("first_batch_s", "first batch", seconds),
        ("close_s", "closing", seconds),
        ("stall_s_per_step", "stall a step", seconds),
        ("peak_anon_mb", "peak memory", megabytes),
    )
    shown = [entry for entry in every if any(entry[0] in figures for figures in ranges.values())]
    rows = []
    for backend, figures in ranges.items():
        cells = []
        for key, _, words in shown:
            figure = figures.get(key)
            median = "-" if figure is None else words(figure.median)
            several = figure is not None and figure.runs > 1
            spread = f"{words(figure.low)} to {words(figure.high)}" if figure and several else ""
            cells.append((median, spread))
        runs = max((figure.runs for figure in figures.values()), default=0)
        rows.append((backend, runs, cells))
    return {"heads": ["backend", "runs", *(head for _, head, _ in shown)], "rows": rows}


def _about(run: Run) -> list[str]:
    """What was measured, unless the label says it, and how it shuffled: figures depend on that."""
    words = [] if run.label.startswith(run.backend) else [run.backend]
    words += [f"shuffle: {run.shuffle}"] if run.shuffle else []
    unchecked = run.stated.get("unchecked_sources")
    if isinstance(unchecked, list) and unchecked:
        words.append(f"{UNCHECKED}: {some_of([*map(str, unchecked)])}")
    return words


def _origin(run: Run) -> str:
    """Which run this is, and how long it was."""
    words = [run.folder.resolve().name, _batches(run)]
    if isinstance(date := run.machine.get("date"), str):
        words.append(date)
    if job := inner(run.machine, "slurm").get("job_id"):
        words.append(f"Slurm job {job}")
    cpu, cores = run.machine.get("cpu"), run.machine.get("cores_allowed", run.machine.get("cores"))
    return " · ".join([*words, f"{cpu}, {cores} cores"] if cpu and cores else words)


def _batches(run: Run) -> str:
    measured = len(run.batches.measured())
    return f"{measured:,} batches measured after {int(run.batches.warmup.sum()):,} of warm-up"


def _details(run: Run) -> dict[str, Any]:
    number = run.numbers.get
    read, available = number("bytes_read_per_sample"), run.memory.available_mb
    facts = {
        "folder": run.folder.resolve().name,
        "backend": run.backend,
        "status": run.status,
        "shuffle": run.shuffle or "-",
        "batches": _batches(run),
        "setup": seconds(number("setup_s")),
        "closing": seconds(number("close_s")),
        "decode limit": f"{amount(number('decode_limit_samples_per_s'))} samples/s",
        "CPU a sample": seconds(number("cpu_s_per_sample")),
        "read a sample": "-" if read is None else f"{amount(read / 1000)} kB",
        "least memory available": megabytes(
            float(np.nanmin(available)) if np.isfinite(available).any() else None
        ),
    }
    if (count := number("validations")) and (start := number("validation_start_s")) is not None:
        longest = seconds(number("validation_start_max_s"))
        facts["validations"] = f"{count:.0f}, started in {seconds(start)} (mean), {longest} at most"
    blocks = {
        "Machine": _aligned(run.machine),
        "Configuration": run.config,
        "End of the log": run.log,
    }
    return {
        "label": run.label,
        "facts": _aligned(facts),
        "blocks": [(heading, text) for heading, text in blocks.items() if text.strip()],
    }


def _aligned(values: Mapping[str, object]) -> str:
    width = max((len(str(key)) for key in values), default=0)
    return "\n".join(f"{key:<{width}}  {_words(key, value)}" for key, value in values.items())


def _words(key: str, value: object) -> str:
    """A fact as a person writes it: sizes with a unit, several facts in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(str(k), v)}" for k, v in value.items()) or "-"
    if key.endswith("bytes") and (size := finite(value)) is not None:
        return megabytes(size / 1e6)
    return value if isinstance(value, str) else json.dumps(value, default=str)
