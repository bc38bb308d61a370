"""The only threads: they turn batches of tasks into filled slots, in order, within a budget.

This room knows nothing of datasets. Whoever uses it hands it batches of tasks and a function that
performs a task into a slot.
"""

from headrace.engine.machine import allowed_cpus

__all__ = ["allowed_cpus"]
