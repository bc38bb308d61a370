"""The index of a set of Parquet files: rows of every row group, and which columns there are.

It is read from the footers once and kept as one JSON file, beside the data or in the cache, with
the size and time of change of every file. Opening it compares these with the files; the footers of
files that changed are read again, and the new index replaces the old one.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.catalog.manifest import cache_folder, candidates, is_writable, some_of
from headrace.catalog.shards import BuildProgress, Quiet
from headrace.errors import DatasetError, HeadraceError, UnknownFieldError
from headrace.files import atomic_write, sync_folder
from headrace.formats.parquet.files import Columns, ParquetStamp, read_footer

FORMAT_VERSION = 1  #: raised when an index written before can no longer be read
_INDEX = "parquet.json"


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file as it was when it was indexed."""

    path: str
    size: int
    mtime_ns: int
    group_rows: tuple[int, ...]
    schema: int  #: number among the catalog's schemas

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(self.group_rows)

    @property
    def stamp(self) -> ParquetStamp:
        """What reading checks."""
        return ParquetStamp(self.path, self.size, self.mtime_ns)


class ParquetCatalog:
    """A set of Parquet files, in the order of their names.

    >>> import headrace as hr
    >>> hr.ParquetCatalog.open("measurements/train")               # doctest: +SKIP
    <ParquetCatalog measurements/train: 180 files, 86,400,000 rows>
    """

    def __init__(
        self,
        path: str,
        files: Sequence[IndexedFile],
        schemas: Sequence[Columns],
        index: Path | None = None,
        changed: Sequence[str] = (),
    ) -> None:
        self.path = path  #: folder or pattern it was opened with
        self.files = tuple(files)
        self.schemas = tuple(schemas)
        self.index = index  #: file of the stored index; None: it could not be stored
        self.changed = tuple(changed)  #: files whose footers were read when it was opened

    def __repr__(self) -> str:
        return f"<ParquetCatalog {self.path}: {len(self.files)} files, {self.rows:,} rows>"

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        cache: bool = False,
        progress: BuildProgress | None = None,
    ) -> ParquetCatalog:
        """Open the index of a folder, a pattern or a list of files; index what is new or changed.

        A folder stands for the `*.parquet` files in it or, if there are none, anywhere below it.
        cache: keep the index in the cache folder even if the data's own folder can be written.
        """
        progress = progress or Quiet()
        title, paths, places, root = _found(where, cache)
        index, old, schemas = _stored(places, root)
        known = {file.path: file for file in old}
        stats = {path: _stat(path) for path in paths}
        changed = [
            path
            for path in paths
            if path not in known or (known[path].size, known[path].mtime_ns) != stats[path]
        ]
        if not changed and len(old) == len(paths):
            return cls(title, old, schemas, index)
        if again := [os.path.basename(path) for path in changed if path in known]:
            progress.note(f"{title}: changed since it was indexed, indexed again: {some_of(again)}")
        progress.begin(title, sum(stats[path][0] for path in changed))
        known |= _read(changed, stats, schemas, progress)
        files = [known[path] for path in paths]
        used = sorted({file.schema for file in files})
        files = [replace(file, schema=used.index(file.schema)) for file in files]
        schemas = [schemas[number] for number in used]
        return cls(title, files, schemas, _store(places, root, files, schemas), changed)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def groups(self) -> int:
        """Row groups of all files."""
        return sum(len(file.group_rows) for file in self.files)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @cached_property
    def columns(self) -> Columns:
        """Names and types of the columns of most files, of those with rows if there are any."""
        rows = any(file.rows for file in self.files)
        counts = [0] * len(self.schemas)
        for file in self.files:
            counts[file.schema] += bool(file.rows) or not rows
        return self.schemas[counts.index(max(counts))]

    def digest(self, *, groups: bool = False) -> str:
        """A short digest of the files' names and rows (and row groups), whatever their folder."""
        facts = [
            [os.path.basename(file.path), list(file.group_rows) if groups else file.rows]
            for file in self.files
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def select(self, columns: Sequence[str] | None = None) -> Columns:
        """These columns (default: all) with their types, if every file with rows has them alike."""
        common = dict(self.columns)
        chosen = list(common) if columns is None else list(columns)
        missing = [name for name in chosen if name not in common]
        if missing:
            listed = ", ".join(f"{name} ({kind})" for name, kind in self.columns) or "none"
            raise UnknownFieldError(
                f"no column {', '.join(map(repr, missing))} in {self.path}",
                remedy=f"The columns there are: {listed}",
            )
        holders = {file.schema: file.path for file in reversed(self.files) if file.rows}
        for number, file in holders.items():
            here = dict(self.schemas[number])
            for name in chosen:
                if here.get(name) == common[name]:
                    continue
                if name not in here:
                    listed = ", ".join(here) or "none"
                    problem = f"this file has no column {name!r}; it has {listed}"
                else:
                    problem = (
                        f"column {name!r} is {here[name]} in this file and {common[name]} elsewhere"
                    )
                raise DatasetError(
                    problem,
                    file=file,
                    field=name,
                    remedy="Write the file again with the columns of the others, or leave it out",
                )
        return tuple((name, common[name]) for name in chosen)

    def place(self, row: int) -> tuple[str, int]:
        """File and number in it of a row, counted through all files."""
        for file in self.files:
            if row < file.rows:
                return file.path, row
            row -= file.rows
        raise IndexError(row)

    def to_dict(self) -> dict[str, Any]:
        """A summary in plain values."""
        rows = [count for file in self.files for count in file.group_rows]
        return {
            "path": self.path,
            "format": "parquet",
            "files": len(self.files),
            "row_groups": self.groups,
            "rows": self.rows,
            "rows_per_group": [min(rows, default=0), max(rows, default=0)],
            "bytes": self.nbytes,
            "empty_files": sum(not file.rows for file in self.files),
            "columns": [{"name": name, "type": kind} for name, kind in self.columns],
            "other_schemas": len(self.schemas) - 1,
            "index": str(self.index) if self.index else None,
        }


def has_parquet(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has Parquet files directly in it."""
    return Path(folder).is_dir() and any(_files_in(Path(folder), "*.parquet"))


def _files_in(folder: Path, pattern: str) -> Iterator[str]:
    for path in folder.glob(pattern):
        inside = path.relative_to(folder).parts
        if not any(part.startswith((".", "_")) for part in inside) and path.is_file():
            yield str(path)


def _found(where: Any, cache: bool) -> tuple[str, list[str], list[Path], str]:
    """Title, files in order, places for the index (best first), and the root of its paths."""
    root = ""
    if isinstance(where, (str, os.PathLike)):
        title = os.fspath(where)
        folder = Path(where)
        if folder.is_dir():
            root = str(folder)  # paths relative to it stay true when it is moved
            files = sorted(_files_in(folder, "*.parquet")) or sorted(
                _files_in(folder, "**/*.parquet")
            )
            places = candidates(folder)[1:] if cache else candidates(folder)
        else:
            files = sorted(glob.glob(title)) if glob.has_magic(title) else [title]
            places = [_listed_place(files)]
    else:
        files = [os.fspath(path) for path in where]
        title = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else "".join(files)
        places = [_listed_place(files)]
    if not files:
        raise DatasetError(
            "there are no Parquet files",
            file=title or None,
            remedy="Give a folder with *.parquet files, a pattern, or a list of files",
        )
    return title, files, places, root


def _listed_place(files: Sequence[str]) -> Path:
    names = "\n".join(os.path.realpath(file) for file in files)
    digest = hashlib.sha256(os.fsencode(names)).hexdigest()[:16]
    return cache_folder() / "catalogs" / f"parquet-{digest}"


def _stat(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise DatasetError(
            f"the file cannot be read: {error.strerror}",
            file=path,
            remedy="Check that it is there and readable",
        ) from None
    return found.st_size, found.st_mtime_ns


def _read(
    paths: list[str],
    stats: dict[str, tuple[int, int]],
    schemas: list[Columns],
    progress: BuildProgress,
) -> dict[str, IndexedFile]:
    """Files by path, from their footers; new schemas are appended."""
    files: dict[str, IndexedFile] = {}
    errors, done, rows = [], 0, 0
    for path in paths:
        try:
            footer = read_footer(Path(path))
        except HeadraceError as error:
            errors.append(error)
            continue
        if footer.columns not in schemas:
            schemas.append(footer.columns)
        number = schemas.index(footer.columns)
        files[path] = IndexedFile(path, *stats[path], footer.group_rows, number)
        done, rows = done + files[path].size, rows + files[path].rows
        progress.advance(done, rows)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        listed = some_of([f"{error.file}: {error.problem}" for error in errors], "; ")
        raise DatasetError(
            f"{len(errors)} of {len(stats)} files cannot be read: {listed}",
            remedy="Copy or write them again, or remove them",
        )
    return files


def _stored(
    places: Sequence[Path], root: str
) -> tuple[Path | None, list[IndexedFile], list[Columns]]:
    """The first index that can be read."""
    for folder in places:
        index = folder / _INDEX
        try:
            values = json.loads(index.read_bytes())
            if values["format_version"] != FORMAT_VERSION:
                continue
            files = [
                IndexedFile(os.path.join(root, path), size, mtime_ns, tuple(groups), schema)
                for path, size, mtime_ns, groups, schema in values["files"]
            ]
            schemas = [tuple((n, t) for n, t in schema) for schema in values["schemas"]]
            return index, files, schemas
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None, [], []


def _store(
    places: Sequence[Path], root: str, files: Sequence[IndexedFile], schemas: Sequence[Columns]
) -> Path | None:
    """Put the index into the first place that can be written; None if none can."""
    values = {
        "format_version": FORMAT_VERSION,
        "schemas": schemas,
        "files": [
            [f.path.removeprefix(root).lstrip("/") if root else f.path, f.size, f.mtime_ns]
            + [f.group_rows, f.schema]
            for f in files
        ],
    }
    for folder in places:
        if not is_writable(folder):
            continue
        try:
            atomic_write(folder / _INDEX, json.dumps(values, separators=(",", ":")))
        except OSError:
            continue
        sync_folder(folder)
        return folder / _INDEX
    return None
