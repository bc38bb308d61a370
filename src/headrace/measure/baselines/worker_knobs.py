"""What a search tries of backends that are torch's DataLoader underneath."""

from __future__ import annotations

from headrace.measure.baselines.baseline import Knob

__all__ = ["worker_knobs"]


def worker_knobs(backend: str, cpus: int) -> tuple[Knob, ...]:
    """Workers around the number of CPUs, which is the default; batches that wait in each.

    >>> [knob.values for knob in worker_knobs("torch", 8)]
    [(4, 16, 7), (1, 4, 8)]
    """
    workers = dict.fromkeys((max(1, cpus // 2), 2 * cpus, max(1, cpus - 1)))
    workers.pop(cpus, None)
    return (
        Knob(f"{backend}.workers", tuple(workers)),
        Knob(f"{backend}.prefetch_factor", (1, 4, 8)),
    )
