"""A process that prepares pieces for a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from headrace.formats.parquet.access import RowAccess
from headrace.formats.parquet.store import StoreUnusable
from headrace.jobs import from_portable

__all__ = ["work"]


@lru_cache(maxsize=1)
def _access(text: str) -> RowAccess:
    access: RowAccess = from_portable(bytes.fromhex(text))
    return access


def work(job: list[Any], report: Callable[[Any], None]) -> dict[str, Any]:
    del report
    text, number = job
    try:
        return {"bytes": _access(text).build(number)}
    except StoreUnusable as error:
        return {"unusable": str(error)}
