"""A search for the fastest options of a backend: a ladder, then a sampler, then a proof.

found = search(space, evaluate, TimeBudget(900), sampler)
print(found.winner, found.proof.words)
"""

from headrace.tuning.search.found import Found
from headrace.tuning.search.search import search
from headrace.tuning.search.space import Space
from headrace.tuning.search.time_budget import TimeBudget

__all__ = ["Found", "Space", "TimeBudget", "search"]
