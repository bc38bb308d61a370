"""A set of windows of rows, opened: which there are, and reading one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.catalog.manifest import cache_folder
from headrace.catalog.parquet import ParquetCatalog
from headrace.catalog.shards import BuildProgress, ProgressBar
from headrace.errors import DatasetError, SelectionError, UsageError
from headrace.formats.parquet.columns import Prepare, Rows, plain_columns, prepare_key
from headrace.formats.parquet.files import RowGroups
from headrace.formats.parquet.rows import RowAccess, fill_store
from headrace.formats.parquet.store import RowGroupStore
from headrace.loader.options import parse_size
from headrace.sampling.items import RowWindows

#: Row groups smaller than this are stored and shuffled (`local`) several together: a file of the
#: store is then some MB, and 8 of them open are 8,000 windows of 64 rows to mix. Not tuned.
PIECE_ROWS = 65_536
#: Below this estimate of decoded bytes (8 a value) "auto" keeps everything in memory: decoding it
#: takes less than starting a process does.
_SMALL_BYTES = 32 << 20


class RowSet:
    """Windows of rows of Parquet files as an array, read without loading the files.

    >>> import headrace as hr
    >>> windows = hr.RowSet("measurements/train", columns=["event_time", "rtt"],
    ...                     window=64, stride=64)                 # doctest: +SKIP
    >>> len(windows), windows[0]["rtt"].shape                     # doctest: +SKIP
    (1350000, (64,))

    - `prepare(table)` turns a decoded row group into numpy columns of fixed width, once; by default
      columns are taken as they are. With `dictionaries` (or `prepare.dictionaries = True`) text
      columns reach it as Arrow dictionaries, which decode ten times as fast where values repeat. A
      prepare with `numbered = True` is called as `prepare(table, first_row=...)`, for its messages.
    - `store`: keep prepared columns on disk, mapped and shared by all processes
      (`HEADRACE_CACHE`); "auto" does so for all but small sets. `store_limit` bounds its bytes.
    - `cache`: bytes of prepared row groups that a process keeps in memory without a store.
    - `eager`: have everything in memory before the first window: the store's pages, or all rows.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ParquetCatalog,
        *,
        columns: Sequence[str] | None = None,
        window: int = 64,
        stride: int | None = None,
        across_files: bool = True,
        short_windows: bool = False,
        prepare: Prepare | None = None,
        store: bool | Literal["auto"] = "auto",
        store_limit: int | str | None = None,
        cache: int | str = "256MiB",
        eager: bool = False,
        dictionaries: bool | None = None,
        progress: BuildProgress | None = None,
    ) -> None:
        if isinstance(where, ParquetCatalog):
            self.catalog = where
        else:
            self.catalog = ParquetCatalog.open(where, progress=progress)
        if isinstance(columns, str):
            raise UsageError(
                f"columns is {columns!r}, a text", remedy=f"Give a list: columns=[{columns!r}]"
            )
        chosen = self.catalog.select(columns)
        self.columns = tuple(name for name, _ in chosen)
        if not self.columns:
            raise UsageError("no columns are chosen", remedy="Name at least one in `columns`")
        file_rows = [file.rows for file in self.catalog.files]
        self.windows = RowWindows(
            file_rows,
            window,
            window if stride is None else stride,
            across_files=across_files,
            short=short_windows,
        )
        self.short_windows = short_windows
        _check_windows(self.windows, self.catalog, short_windows)
        prepare = prepare or plain_columns
        if dictionaries is None:
            dictionaries = prepare is plain_columns or getattr(prepare, "dictionaries", False)
        groups = [file.group_rows for file in self.catalog.files]
        estimate = self.catalog.rows * len(self.columns) * 8
        if store == "auto":
            store = estimate > _SMALL_BYTES and not eager
        #: Memory that row groups take in every process.
        self.cache_bytes = 0 if store else estimate if eager else min(parse_size(cache), estimate)
        pieces = RowGroups(groups, PIECE_ROWS if store else 1)
        files = [file.stamp for file in self.catalog.files]
        limit = None if store_limit is None else parse_size(store_limit)
        self.access = RowAccess(
            files,
            pieces,
            self.columns,
            prepare,
            dictionaries=[name for name, kind in chosen if dictionaries and kind in _TEXT],
            cache_bytes=parse_size(cache),
            store=RowGroupStore(self._folder(prepare), files, pieces, limit) if store else None,
        )
        self._groups = groups
        self.eager = eager
        if eager:
            if store:
                self.fill_store(progress=progress)
            self.access.load()

    def __repr__(self) -> str:
        # Without the path: Grain compares it with that in a checkpoint.
        return (
            f"RowSet({len(self.catalog.files)} files, {self.catalog.rows} rows, "
            f"{len(self)} windows of {self.windows.size}, stride {self.windows.stride}, "
            f"digest {self.catalog.digest()})"
        )

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, window: int) -> Rows:
        """The columns of a window."""
        length = len(self)
        if not -length <= window < length:
            raise IndexError(f"window {window} of {length}")
        first, count = self.windows.locate(int(window) % length)
        return self.access.rows(int(first), int(count))

    @property
    def stored(self) -> bool:
        """Whether prepared columns are kept on disk."""
        return self.access.store is not None

    @property
    def order_pieces(self) -> RowGroups:
        """What a local shuffle goes through: they depend on the files alone."""
        return RowGroups(self._groups, PIECE_ROWS)

    def fill_store(
        self, *, workers: int | None = None, progress: BuildProgress | None = None
    ) -> bool:
        """Prepare everything that the store lacks, on all CPUs; whether all is there then."""
        store = self.access.store
        if store is None:
            return False
        missing = store.missing()
        if not missing:
            return True
        todo = sum(self.access.groups[number].rows for number in missing)
        whole = max(1, self.catalog.rows)
        with ProgressBar("preparing", "rows") as bar:
            shown = progress or bar
            shown.begin(self.catalog.path, self.catalog.nbytes * todo // whole)
            done = 0

            def one(rows: int, size: int) -> None:
                nonlocal done
                del size
                done += rows
                shown.advance(self.catalog.nbytes * done // whole, done)

            return fill_store(self.access, one, workers=workers)

    def place(self, window: int) -> tuple[str, int]:
        """File and row in it at which a window begins."""
        return self.catalog.place(int(self.windows.locate(window)[0]))

    def fingerprint(self, *, groups: bool) -> dict[str, Any]:
        """What an order of its windows depends on; that of a local shuffle also on row groups."""
        return {
            "files": len(self.catalog.files),
            "rows": self.catalog.rows,
            "digest": self.catalog.digest(groups=groups),
            "window": self.windows.size,
            "stride": self.windows.stride,
            "across_files": self.windows.across_files,
            "short_windows": self.short_windows,
            "windows": len(self),
        }

    def _folder(self, prepare: Prepare) -> Path:
        path = os.path.realpath(os.path.dirname(self.catalog.files[0].path) or ".")
        facts = [path, self.columns, prepare_key(prepare)]
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        return cache_folder() / "rows" / f"{os.path.basename(path)}-{digest}"


_TEXT = ("string", "large_string", "binary", "large_binary")


def _check_windows(windows: RowWindows, catalog: ParquetCatalog, short: bool) -> None:
    """There is a window, and no file is left out without a word."""
    if not catalog.rows:
        raise DatasetError(
            f"the {len(catalog.files)} files have no rows",
            file=catalog.path,
            remedy="Give files with rows",
        )
    if short or not len(windows.too_short):
        return
    if windows.across_files:
        raise SelectionError(
            f"the set has {catalog.rows} rows where a window has {windows.size}",
            file=catalog.path,
            remedy="Give a smaller `window`, more files, or short_windows=True for one window of "
            "all rows",
        )
    names = [os.path.basename(catalog.files[number].path) for number in windows.too_short]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise SelectionError(
        f"{len(names)} files have fewer rows than a window of {windows.size}: {shown}",
        file=catalog.path,
        remedy="Give across_files=True, a smaller `window`, or short_windows=True for one window "
        "of all rows of each",
    )
