"""One page that needs nothing else: no network, no script, readable on paper and without colour."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.measure.columns import finite
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.look import PAGE_STYLE, SVG_STYLE, VARIABLES
from headrace.measure.report.plot import Plot
from headrace.measure.report.runs import Range
from headrace.measure.report.svg import escape
from headrace.measure.report.table import Table, html_table, nothing
from headrace.measure.runs import Run
from headrace.measure.verdict import comparison_verdict, run_verdict

__all__ = ["COLUMNS", "page", "row_cells"]

#: Heads of the summary's columns; those after the first are figures, the last is the verdict.
COLUMNS = (
    "run",
    "samples/s",
    "of decode limit",
    "stall a step",
    "p50",
    "p99",
    "first batch",
    "peak memory",
    "verdict",
)
#: Figures of a comparison over repeated runs, with their words.
_REPEATED = (
    ("samples_per_s", "samples/s", amount),
    ("limit_ratio", "of decode limit", share),
    ("first_batch_s", "first batch", seconds),
    ("stall_s_per_step", "stall a step", seconds),
    ("peak_anon_mb", "peak memory", megabytes),
)
#: The page holds text from datasets: even if some slipped through, nothing may run or be fetched.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(
    title: str,
    runs: Sequence[Run],
    plots: Sequence[Plot],
    ranges: Mapping[str, Mapping[str, Range]] | None = None,
    problems: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> str:
    """The whole page as text."""
    lead = comparison_verdict(runs, ranges or {}) if len(runs) > 1 else ""
    body = "".join(
        (
            f"<h1>{escape(title)}</h1>",
            f'<p class="lead">{escape(lead)}</p>' if lead else "",
            f'<p class="soft">{escape(_origin(runs[0]))}</p>' if len(runs) == 1 else "",
            _problems(runs, problems),
            _summary(runs),
            _repeats(ranges or {}),
            "<h2>Plots</h2>" if plots else "",
            *(_figure(plot) for plot in plots),
            "<h2>Where batch time goes</h2>" if tables else "",
            *(table.html() for table in tables),
            "<h2>How it was measured</h2>",
            *(_details(run) for run in runs),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{VARIABLES}{SVG_STYLE}{PAGE_STYLE}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def row_cells(run: Run) -> tuple[str, ...]:
    """The summary's line of a run, in the order of `COLUMNS`."""
    number = run.numbers.get
    anonymous = number("peak_anon_mb")
    return (
        run.label,
        amount(number("samples_per_s")),
        share(number("limit_ratio")),
        seconds(number("stall_s_per_step")),
        seconds(number("p50_s")),
        seconds(number("p99_s")),
        seconds(number("first_batch_s")),
        megabytes(number("peak_rss_mb") if anonymous is None else anonymous),
        run_verdict(run),
    )


def _summary(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        label, *figures, verdict = (escape(cell) for cell in row_cells(run))
        cells = "".join(f"<td>{figure}</td>" for figure in figures)
        rows.append(
            f'<tr><th scope="row">{label}{_about(run)}</th>'
            f'{cells}<td class="words">{verdict}</td></tr>'
        )
    caption = "Peak memory is anonymous memory where it is known, resident memory where not."
    return html_table(COLUMNS, rows, caption, words=("run", "verdict"))


def _about(run: Run) -> str:
    """What was measured, unless the label says it, and how it shuffled: figures depend on that."""
    words = [] if run.label.startswith(run.backend) else [run.backend]
    words += [f"shuffle: {run.shuffle}"] if run.shuffle else []
    return "".join(f'<br><span class="about">{escape(each)}</span>' for each in words)


def _origin(run: Run) -> str:
    """Which run this is, and how long it was."""
    words = [run.folder.resolve().name, _batches(run)]
    cpu, cores = run.machine.get("cpu"), run.machine.get("cores_allowed", run.machine.get("cores"))
    words += [f"{cpu}, {cores} cores"] if cpu and cores else []
    return " · ".join(words)


def _batches(run: Run) -> str:
    measured = len(run.batches.measured())
    return f"{measured:,} batches measured after {int(run.batches.warmup.sum()):,} of warm-up"


def _repeats(ranges: Mapping[str, Mapping[str, Range]]) -> str:
    if not any(figure.runs > 1 for figures in ranges.values() for figure in figures.values()):
        return ""  # one round: the table above says it all
    shown = [entry for entry in _REPEATED if any(entry[0] in f for f in ranges.values())]
    rows = []
    for backend, figures in ranges.items():
        count = max((figure.runs for figure in figures.values()), default=0)
        cells = [f"<td>{count}</td>"]
        for key, _, words in shown:
            figure = figures.get(key)
            text = "-" if figure is None else words(figure.median)
            if figure is not None and figure.runs > 1:
                text += f" ({words(figure.low)} to {words(figure.high)})"
            cells.append(f"<td>{escape(text)}</td>")
        rows.append(f'<tr><th scope="row">{escape(backend)}</th>{"".join(cells)}</tr>')
    heads = ("backend", "runs", *(head for _, head, _ in shown))
    table = html_table(
        heads, rows, "Median of the repeated runs (lowest to highest).", ("backend",), "narrow"
    )
    return f"<h2>Repeated runs</h2>{table}"


def _problems(runs: Sequence[Run], problems: Sequence[str]) -> str:
    found = [*problems, *(f"{run.label}: {text}" for run in runs for text in run.problems)]
    if not found:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in found)
    return f'<div class="problems" role="note"><b>Not all could be read</b><ul>{items}</ul></div>'


def _figure(plot: Plot) -> str:
    if plot.drawing is None:
        return nothing(plot.title, plot.caption)
    return (
        f'<figure id="{escape(plot.name)}"><div class="scroll">{plot.drawing.render()}</div>'
        f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
    )


def _details(run: Run) -> str:
    facts = {
        "folder": run.folder.resolve().name,
        "backend": run.backend,
        "status": run.status,
        "shuffle": run.shuffle or "-",
        "batches": _batches(run),
        "setup": seconds(run.numbers.get("setup_s")),
        "decode limit": f"{amount(run.numbers.get('decode_limit_samples_per_s'))} samples/s",
        "CPU a sample": seconds(run.numbers.get("cpu_s_per_sample")),
        "read a sample": _bytes(run.numbers.get("bytes_read_per_sample")),
        "least memory available": megabytes(_least(run)),
    }
    blocks = [_block("Machine", _lines(run.machine)), _block("Configuration", run.config)]
    blocks.append(_block("End of the log", run.log))
    return (
        f"<details><summary>{escape(run.label)}: configuration and machine</summary>"
        f"<pre>{escape(_lines(facts), keep=chr(10))}</pre>{''.join(blocks)}</details>"
    )


def _block(title: str, text: str) -> str:
    if not text.strip():
        return ""
    return f"<h3>{title}</h3><pre>{escape(text.expandtabs(4), keep=chr(10))}</pre>"


def _lines(values: Mapping[str, object]) -> str:
    width = max((len(str(key)) for key in values), default=0)
    return "\n".join(f"{key:<{width}}  {_words(key, value)}" for key, value in values.items())


def _words(key: str, value: object) -> str:
    """A fact as a person writes it: sizes with a unit, several facts in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(str(k), v)}" for k, v in value.items()) or "-"
    if key.endswith("bytes") and (size := finite(value)) is not None:
        return megabytes(size / 1e6)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _least(run: Run) -> float | None:
    available = run.memory.available_mb
    return float(np.nanmin(available)) if np.isfinite(available).any() else None


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{amount(value / 1000)} kB"
