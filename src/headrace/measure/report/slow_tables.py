"""Where batch time goes, in tables."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.measure.quantities import amount, seconds
from headrace.measure.report.slow import Group, SlowBatch, by_dominant, slowest, switch_stay
from headrace.measure.report.table import Table
from headrace.measure.runs import Run

__all__ = ["dominant_table", "run_tables", "slowest_table", "switch_table"]

_NONE = "no measured batch has a time and names its dataset"


def run_tables(run: Run) -> list[Table]:
    """All tables of one run, in the order of the page."""
    return [dominant_table(run), switch_table([run]), slowest_table(run)]


def dominant_table(run: Run) -> Table:
    """Batch times by dominant dataset."""
    groups = by_dominant(run.batches)
    return Table(
        "Batch time by dominant dataset",
        "The dominant dataset is the one with most samples in the batch; slowest first. With a "
        "global shuffle batches look alike and the rows differ by chance: this matters for "
        "backends that serve datasets in blocks."
        if groups
        else _NONE,
        ("dominant dataset", "batches", "mean", "p50", "p90"),
        tuple((group.name, *_figures(group)) for group in groups),
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
        "Batches whose dominant dataset is another than in the batch before (switch), against "
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
    return Table(
        "The slowest batches" if len(found) < 10 else "The ten slowest batches",
        "Measured batches only. Received: seconds since the first request. Gap: batches since "
        "that dataset was dominant before, warm-up included."
        if found
        else "no measured batch has a time",
        ("batch", "received", "batch time", "fetch time", "dominant dataset", "gap"),
        tuple(
            (
                str(batch.idx),
                f"{batch.t_s:,.2f} s",
                seconds(batch.dt_s),
                seconds(batch.fetch_s),
                batch.dominant or "-",
                _gap(batch),
            )
            for batch in found
        ),
        words=("dominant dataset",),
    )


def _figures(group: Group) -> tuple[str, ...]:
    return (
        f"{group.batches:,}",
        seconds(group.mean_s),
        seconds(group.p50_s),
        seconds(group.p90_s),
    )


def _gap(batch: SlowBatch) -> str:
    if batch.gap is None:
        return "first time" if batch.dominant else "-"
    return f"{batch.gap:,}"
