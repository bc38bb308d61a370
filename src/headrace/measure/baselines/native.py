"""headrace's own loader as a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.engine.statistics import Span
from headrace.loader import Batch, Loader
from headrace.loader.loader import feed_of
from headrace.loader.options import LoaderOptions
from headrace.loader.sizes import PREFETCH
from headrace.measure.baselines.baseline import Baseline, Knob
from headrace.measure.job import OWN_KEYS, Job


class _Native:
    def __init__(self, job: Job) -> None:
        self.loader = Loader(job.mixture, job.loader, **BASELINE.with_defaults(job.options))
        self.names, self.close = self.loader.names, self.loader.close

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def validation(self, batches: int) -> Iterator[Batch]:
        return self.loader.validation(batches)

    def begin_trace(self, _folder: Path) -> None:
        feed_of(self.loader).record_spans(True)

    def end_trace(self) -> Sequence[Sequence[Span]]:
        return feed_of(self.loader).record_spans(False)

    def damaged(self) -> Sequence[Any]:
        return self.loader.statistics().damaged

    def figures(self) -> Mapping[str, Any]:
        figures = self.loader.statistics()
        engine = figures.engine
        return {
            "threads": engine.threads,
            "processes": list(engine.processes),
            "budget": engine.budget.limit,
            "budget_peak": engine.budget.peak,
            "slots": engine.streams[0].slot_limit if engine.streams else None,
            "slots_wanted": PREFETCH + 2,
            "bytes_read": engine.bytes_read,
            "images": engine.images,
            "stages": {stage.name: stage.busy_s for stage in engine.stages},
            "waiting_s": engine.waiting_s,
            "asked": figures.shares,
            "skipped": figures.skipped,
            "unchecked": list(figures.unchecked),
        }


def _knobs(cpus: int) -> tuple[Knob, ...]:
    """All that could change its speed: a search should find that the defaults are right."""
    workers = dict.fromkeys((2 * cpus, max(1, cpus // 2), 0))  # 0: threads alone
    workers.pop(cpus, None)
    return (
        Knob("loader.workers", tuple(workers)),
        Knob("loader.memory", ("2GiB", "8GiB")),
    )


BASELINE = Baseline(
    name="headrace",
    needs=(),
    install="pip install headrace",
    shuffle="global, every pair equally likely",
    open=lambda job, _: closing(_Native(job)),
    # What it can be told beyond what every backend is told.
    options={key: getattr(LoaderOptions(), key) for key in OWN_KEYS},
    knobs=_knobs,
)
