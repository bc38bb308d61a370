"""A folder of Parquet files to batches for MaxText: through headrace's loader, or through Grain.

    with token_loader("DATA/train", batch_size=256) as batches:
        for batch in batches:
            step(batch)          # int32 [256, 1024] under the names of `FIELDS`

`token_rows` are the windows, for other ways to them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from headrace import RowLoader, RowOptions, RowSet, RowTransform, WindowDraw
from headrace.errors import UsageError
from headrace.recipes.network.prepare import (
    PREPARED,
    BadAddresses,
    Prepared,
    check_policy,
    prepare,
)
from headrace.recipes.network.tokenize import FIELDS, tokenize_windows
from headrace.recipes.network.vocabulary import COLUMNS, LENGTH, ROWS

if TYPE_CHECKING:
    from headrace.outputs.grain import Pipeline

#: What `tokenize_windows` writes of a window.
OUTPUTS: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(FIELDS, ((LENGTH,), "int32"))


def _tokenize(rows: Prepared, out: Prepared, draw: WindowDraw) -> None:
    tokenize_windows(rows, draw.window, draw.epoch, draw.seed, out)


#: Windows of prepared rows as tokens.
TOKENS = RowTransform(_tokenize, outputs=OUTPUTS, many=True, writes_all=True)

#: Rows that are prepared at once: a row takes ten times its own size on the way, and a row group
#: may have a million of them.
_AT_ONCE = 1 << 15

Where: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class PrepareRows:
    """`prepare` as a `RowSet` calls it: told which row of its file a row group begins with."""

    bad_addresses: BadAddresses = "error"

    dictionaries: ClassVar[bool] = True  #: each address is parsed once
    numbered: ClassVar[bool] = True
    version: ClassVar[int] = 1  #: to be raised when prepared rows change: they are kept on disk

    def __call__(self, table: Any, first_row: int = 0) -> Prepared:
        made: Prepared = {
            name: np.empty((len(table), *shape), dtype) for name, (dtype, shape) in PREPARED.items()
        }
        for begin in range(0, len(table), _AT_ONCE):
            some = prepare(
                table.slice(begin, _AT_ONCE),
                bad_addresses=self.bad_addresses,
                first_row=first_row + begin,
            )
            for name, values in some.items():
                made[name][begin : begin + _AT_ONCE] = values
        return made


def token_rows(
    where: Where,
    *,
    stride: int = ROWS,
    bad_addresses: BadAddresses = "error",
    store: bool = True,
    **options: Any,
) -> RowSet:
    """Windows of 64 prepared rows of a folder's files, not yet tokens.

    Fewer rows than that are one short window. Rows are prepared once and stored on disk, 44 bytes
    each, also those of a small set: preparing takes ten times as long as tokenizing. The other
    `options` are those of `hr.RowSet`: `store_limit`, `cache`, `eager`, `across_files`, `progress`.
    """
    check_policy(bad_addresses)
    if isinstance(where, (str, os.PathLike)) and os.path.isdir(where) and not _has_parquet(where):
        # A `RowSet` would take the files below it: those of train and test alike.
        raise UsageError(
            f"there are no Parquet files in {os.fspath(where)!r} itself",
            remedy="Give the folder of a split, such as data/train, a pattern, or a list of files",
        )
    return RowSet(
        where,
        columns=COLUMNS,
        window=ROWS,
        stride=stride,
        short_windows=True,
        prepare=PrepareRows(bad_addresses),
        store=store,
        **options,
    )


def token_loader(
    where: Where | RowSet, options: RowOptions | None = None, /, **changes: Any
) -> RowLoader:
    """Endless batches of tokens, shuffled over all files, by headrace's workers.

    It takes `hr.RowOptions` or its fields (`batch_size`, `seed`, `shuffle`, `workers`, ...);
    for the
    options of the windows give what `token_rows` returns instead of the folder.
    """
    rows = where if isinstance(where, RowSet) else token_rows(where)
    return RowLoader(
        rows,
        options,
        transform=TOKENS,
        **changes,
    )


def token_pipeline(where: Where | RowSet, batch_size: int, **options: Any) -> Pipeline:
    """The same batches as a Grain `IterDataset`, by its threads or worker processes.

    `options` are those of `headrace.outputs.grain.grain_pipeline` (`seed`, `shuffle`,
    `num_threads`, `num_workers`, `epochs`, `rank`, ...).
    """
    from headrace.outputs.grain import grain_pipeline  # needs Grain, as nothing else here does

    rows = where if isinstance(where, RowSet) else token_rows(where)
    return grain_pipeline(
        rows,
        batch_size=batch_size,
        transform=TOKENS,
        **options,
    )


def _has_parquet(folder: str | os.PathLike[str]) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.endswith(".parquet") for entry in entries)
