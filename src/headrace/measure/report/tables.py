"""The tables of a report, for the page and as plain text, and the summary of the mixture."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.measure.columns import finite
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.slow import by_dominant, clumping, slowest, switch_stay, switches
from headrace.measure.results import Run
from headrace.measure.runs import inner
from headrace.measure.theme import printable
from headrace.measure.verdict import run_verdict

_STALL = "stall a step"
#: Heads of the summary's columns; those between the first and the last hold figures.
COLUMNS = (
    "run",
    "samples/s",
    "of decode limit",
    _STALL,
    "p50",
    "p99",
    "first batch",
    "peak memory",
    "verdict",
)
#: Letters of a line of text, and of a name in a column.
_LINE, _CELL = 100, 72
_TOP_DATASETS = 10
#: From here on batches differ by more than chance. A global shuffle has 1, with a spread of some
#: hundredths over a hundred batches of ten datasets.
_CLUMPED = 2.0
#: Fewer switches or stays than this say little about their cost.
_FEW = 10


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in words, under a title."""

    title: str
    caption: str  #: how to read it, or why there is nothing to read
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  #: the first cell of a row names it
    words: tuple[str, ...] = ()  #: heads of the other columns that hold words and not figures

    def text(self) -> str:
        """The table for a terminal or a text file."""
        lines = [self.title, *textwrap.wrap(self.caption, _LINE)]
        if self.rows:
            lines += ["", *_aligned(self.heads, self.rows, self.words)]
        return "\n".join(lines) + "\n"


def summary_cells(run: Run) -> tuple[str, ...]:
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


def run_tables(run: Run) -> list[Table]:
    """Where the batch time of one run goes, in the order of the page."""
    return [dominant_table(run), switch_table([run]), slowest_table(run)]


def summary_columns(runs: Sequence[Run]) -> list[int]:
    """The columns of the summary that say something of these runs, for a terminal."""
    cells = [summary_cells(run) for run in runs]
    # Without a step the consumer always waits.
    stepless = all(run.numbers.get("simulated_step_ms") == 0 for run in runs)
    return [
        number
        for number, head in enumerate(COLUMNS)
        if any(row[number] != "-" for row in cells) and not (stepless and head == _STALL)
    ]


def terminal_tables(runs: Sequence[Run]) -> list[Table]:
    """Those that have something to say of these runs, for a terminal."""
    clumped = [run for run in runs if (clumping(run.batches) or 0.0) > _CLUMPED]
    tables = [dominant_table(run) for run in clumped] if len(runs) == 1 else []
    tables.append(switch_table([run for run in clumped if _switches_enough(run)]))
    if len(runs) == 1:
        tables.append(slowest_table(runs[0]))
    tables.append(gpu_table(runs))
    return [table for table in tables if table.rows]


def _switches_enough(run: Run) -> bool:
    found = switch_stay(run.batches)
    return min(found.switch.batches, found.stay.batches) >= _FEW


def gpu_table(runs: Sequence[Run]) -> Table:
    """How the runs used their GPUs, as far as they say."""
    rows = []
    for run in runs:
        if gpu := inner(run.stated, "gpu"):
            used = inner(gpu, "utilization_percent")
            percents = [finite(used.get(key)) for key in ("mean", "p10")]
            sizes = [finite(gpu.get(f"memory_{key}_bytes")) for key in ("peak", "total")]
            rows.append(
                (
                    run.label,
                    str(gpu.get("name", "-")),
                    *("-" if x is None else f"{x:.0f}%" for x in percents),
                    *(megabytes(None if x is None else x / 1e6) for x in sizes),
                    share(finite(gpu.get("mfu")), 1),
                )
            )
    return Table(
        "GPU",
        "Utilisation: share of the time in which it computed anything, in the mean and of the "
        "least used tenth of the readings. MFU: share of its peak that the model used."
        if rows
        else "no run was on a GPU, or none was looked at",
        ("run", "GPU", "utilisation", "lowest tenth", "memory, peak", "memory", "MFU"),
        tuple(rows),
        words=("GPU",),
    )


def dominant_table(run: Run) -> Table:
    """Batch times by dominant dataset."""
    groups = by_dominant(run.batches)
    return Table(
        "Batch time by dominant dataset",
        "The dominant dataset is the one with most samples in the batch; slowest first. With a "
        "global shuffle batches look alike and the rows differ by chance: this matters for "
        "backends that deliver datasets in blocks."
        if groups
        else "no measured batch has a time and names its dataset",
        ("dominant dataset", "batches", "mean", "p50", "p90"),
        tuple(
            (g.name, f"{g.batches:,}", seconds(g.mean_s), seconds(g.p50_s), seconds(g.p90_s))
            for g in groups
        ),
    )


def switch_table(runs: Sequence[Run]) -> Table:
    """Batch times where the dominant dataset changed, against where it stayed; a row a run."""
    rows = []
    for run in runs:
        found = switch_stay(run.batches)
        if found.switch.batches or found.stay.batches:
            cells = [
                cell
                for group in (found.switch, found.stay)
                for cell in (f"{group.batches:,}", seconds(group.mean_s))
            ]
            rows.append((run.label, *cells, amount(found.ratio)))
    return Table(
        "Switch and stay",
        "Batches whose dominant dataset differs from that of the batch before (switch), against "
        "those where it is the same (stay). The ratio is that of the means; of few batches it says "
        "little."
        if rows
        else "no two measured batches in a row name their datasets",
        ("run", "switches", "mean at a switch", "stays", "mean at a stay", "ratio"),
        tuple(rows),
    )


def slowest_table(run: Run) -> Table:
    """The slowest batches, with what may have made them slow."""
    found = slowest(run.batches)
    rows = []
    for batch in found:
        gap = "-" if batch.dominant is None else "first time"
        rows.append(
            (
                str(batch.idx),
                f"{batch.t_s:,.2f} s",
                seconds(batch.dt_s),
                seconds(batch.fetch_s),
                batch.dominant or "-",
                gap if batch.gap is None else f"{batch.gap:,}",
            )
        )
    return Table(
        "The slowest batches" if len(found) < 10 else "The ten slowest batches",
        "Measured batches only. Received: seconds since the first request. Gap: batches since "
        "that dataset was last dominant, warm-up included."
        if found
        else "no measured batch has a time",
        ("batch", "received", "batch time", "fetch time", "dominant dataset", "gap"),
        tuple(rows),
        words=("dominant dataset",),
    )


def mixture_summary(run: Run) -> str:
    """The mixture in numbers, as text: one `key: value` a line, then tables.

    `dominant_switch_rate` is the share of batches whose dominant dataset (the one with most samples
    in it) differs from that of the batch before.
    """
    batches = run.batches.measured()
    dominant = [str(name) for name in batches.dominant if name]
    switched, stayed = (int(where.sum()) for where in switches(batches))
    rate = f"{switched / (switched + stayed):.4f}" if switched + stayed else "-"
    lines = [
        f"run: {_cell(run.label)}",
        f"measured_batches: {len(batches)}",
        f"measured_samples: {batches.samples.sum():.0f}",
        f"datasets: {len(run.mixture)}",
        f"unique_dominant_datasets: {len(set(dominant))}",
        f"dominant_switch_rate: {rate}",
        "top_datasets:",
    ]
    for name, count in Counter(dominant).most_common(_TOP_DATASETS):
        lines.append(f"  {_cell(name)}: dominant in {count} ({100 * count / len(dominant):.2f}%)")
    rows = []
    for name, part in sorted(run.mixture.items(), key=lambda item: -(item[1].actual or 0.0)):
        apart = (
            None if part.requested is None or part.actual is None else part.actual - part.requested
        )
        words = "-" if apart is None else f"{100 * apart:+.3f}%"
        rows.append((name, share(part.requested, 3), share(part.actual, 3), words))
    lines += ["", *_aligned(("dataset", "requested", "actual", "difference"), rows), ""]
    return "\n".join([*lines, *(table.text() for table in run_tables(run))])


def _aligned(
    heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()
) -> list[str]:
    """Lines of text: the first column and those in `words` to the left, figures to the right.

    >>> print(*_aligned(("dataset", "batches"), [("bridge", "7"), ("rt1", "12")]), sep="\\n")
    dataset  batches
    bridge         7
    rt1           12
    """
    cells = [[_cell(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [head in (heads[0], *words) for head in heads]
    return [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in cells
    ]


def _cell(text: str) -> str:
    """Text from the data that cannot begin a line of its own."""
    shown = printable(text)
    return shown if len(shown) <= _CELL else shown[: _CELL - 1] + "…"
