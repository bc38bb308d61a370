"""Filling a store before it is needed, on all CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.engine.memory import available_memory
from headrace.errors import CatalogError
from headrace.formats.parquet.access import RowAccess
from headrace.formats.parquet.store import StoreUnusable
from headrace.jobs import ProcessPool, WorkerLost, allowed_cpus, to_portable

__all__ = ["fill_store"]

#: Below this many rows the work is done before worker processes have started (0.3 s).
_IN_PROCESS_ROWS = 1_000_000
#: What a process takes at its peak, in all and for each row of a piece: so shared out because it
#: was 168 MB with pieces of 425,000 rows of five columns (Python 3.12, Arrow 25).
_PROCESS_BYTES, _ROW_BYTES = 64 << 20, 256


def fill_store(
    access: RowAccess, done: Callable[[int, int], None], *, workers: int | None = None
) -> bool:
    """Make what the store lacks; `done(rows, bytes)` hears of every piece; whether all is there.

    Where nothing more can be stored, it says so once and leaves the rest to memory.
    """
    assert access.store is not None
    missing = access.store.missing()
    missing.sort(key=lambda number: -access.pieces[number].rows)
    rows = sum(access.pieces[number].rows for number in missing)
    count = min(workers or _workers(access, missing), len(missing))
    sent = to_portable(access) if rows > _IN_PROCESS_ROWS and count > 1 else None
    if sent is None:
        for number in missing:
            try:
                done(access.pieces[number].rows, access.build(number))
            except StoreUnusable as error:
                access.without_store(str(error))
                return False
        return True
    jobs = [[sent.hex(), number] for number in missing]
    try:
        with ProcessPool("headrace.formats.parquet.store_worker:work", count) as pool:
            for place, result in pool.run(jobs, lambda *_: None):
                if "unusable" in result:
                    access.without_store(result["unusable"])
                    return False
                done(access.pieces[missing[place]].rows, result["bytes"])
    except WorkerLost as lost:
        piece = access.pieces[missing[lost.job]]
        raise CatalogError(
            f"{lost} while it prepared rows",
            file=access.files[piece.file].path,
            remedy="Its own message stands above; what was finished is kept",
        ) from None
    return True


def _workers(access: RowAccess, missing: Sequence[int]) -> int:
    """A process for each CPU, as far as a quarter of the free memory goes."""
    largest = access.pieces[missing[0]].rows if missing else 0
    fit = available_memory() // 4 // (_PROCESS_BYTES + _ROW_BYTES * largest)
    return max(1, min(allowed_cpus(), fit))
