"""The only threads and processes of loading: they fill slots with batches, in order, in a budget.

This room knows nothing of datasets: callers hand it batches of tasks, and a `Work` that fills rows.
"""

from headrace.engine.machine import allowed_cpus, rank_and_world_size_of_launcher

__all__ = ["allowed_cpus", "rank_and_world_size_of_launcher"]
