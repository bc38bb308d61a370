"""Batches from rows in memory, in a global shuffle: the whole way without files, threads or knobs.

For tests, and as the yardstick of a loader: nothing can be faster on one core than tokenizing rows
that lie there already. Batches for training come from `rows`, which does not read everything first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from headrace.errors import HeadraceError, UsageError
from headrace.recipes.network.prepare import BadAddresses, Prepared, prepare
from headrace.recipes.network.tokenize import FIELDS, tokenize_windows
from headrace.recipes.network.vocabulary import COLUMNS, LENGTH, ROWS
from headrace.sampling.bijection import check_seed, hash_ints, permute

__all__ = ["memory_batches", "read_rows"]


def read_rows(folder: str | Path, *, bad_addresses: BadAddresses = "error") -> Prepared:
    """All rows of a folder's Parquet files, by name, prepared: 44 bytes each."""
    files = sorted(Path(folder).glob("*.parquet"))
    if not files:
        raise UsageError(
            f"there are no Parquet files in {str(folder)!r}",
            remedy="Give the folder of a split, such as data/train",
        )
    parts = []
    for file in files:
        try:
            table = pq.read_table(file, columns=list(COLUMNS))
            parts.append(prepare(table, bad_addresses=bad_addresses))
        except HeadraceError as error:
            raise error.within(file=str(file)) from None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def memory_batches(
    columns: Mapping[str, npt.NDArray[Any]], batch_size: int, *, seed: int = 0, start: int = 0
) -> Iterator[dict[str, npt.NDArray[np.int32]]]:
    """Endless batches of windows of 64 rows, each epoch in another order; `start` batches in.

    Windows that do not fill a batch at the end of an epoch begin the next one.
    """
    rows = len(columns["time"])
    windows = max(1, (rows - ROWS) // ROWS + 1)
    each = min(rows, ROWS)
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}", remedy="Give a number from 1 upwards")
    check_seed(seed)
    places = np.arange(each)
    while True:
        draw = start * batch_size + np.arange(batch_size)
        epoch, within = np.divmod(draw, windows)
        window = permute(within, windows, hash_ints(seed, epoch))
        chosen = (window * ROWS)[:, None] + places
        batch = {name: np.empty((batch_size, LENGTH), np.int32) for name in FIELDS}
        taken = {name: values[chosen] for name, values in columns.items()}
        tokenize_windows(taken, window, epoch, seed, batch)
        yield batch
        start += 1
