"""Measuring what machine and data allow, for a loader at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.loader.feed import MixtureFeed
from headrace.measure.evidence import Evidence
from headrace.measure.limit import decode_limit, storage_limit
from headrace.tuning.doctor.costs import source_costs

__all__ = ["with_limits"]

_DECODE_SECONDS = 1.5
_STORAGE_SECONDS = 0.5
_STORAGE_DRAWS = 8192  # a warm page cache is through with them in less


def with_limits(
    evidence: Evidence, loader: MixtureFeed, watch: Callable[[str], None] = lambda _: None
) -> Evidence:
    """The evidence with the limits of the loader's next draws, on as many cores as it has threads.

    Nothing is drawn from the loader, which has filled its slots by the time that counting begins.
    """
    threads = loader.sizes.threads
    watch("decode limit")
    decode = decode_limit(loader, seconds=_DECODE_SECONDS, processes=threads)
    watch("storage limit")
    storage = storage_limit(
        loader, seconds=_STORAGE_SECONDS, processes=threads, samples=_STORAGE_DRAWS
    )
    sources = source_costs(loader, watch=lambda name: watch(f"costs of {name}"))
    return replace(
        evidence,
        decode_limit=decode.samples_per_s,
        storage_limit=storage.samples_per_s,
        sources=sources,
    )
