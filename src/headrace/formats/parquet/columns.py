"""A decoded row group as numpy columns of fixed width, and those put together row by row.

In `Records` the bytes of a window are contiguous, whatever its columns. A window is then one copy
of one slice of memory, or of the page cache, instead of one per column, and on a disk one place
instead of several.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, HeadraceError, UsageError
from headrace.formats.parquet.files import ParquetStamp, RowGroup, read_row_groups

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = dict[str, NDArray[Any]]
#: Turns a decoded row group into columns, once; rows stay in their order. With an attribute
#: `numbered` that is true it is also given `first_row`, the number of its first row in the file.
Prepare: TypeAlias = "Callable[[pa.Table], Rows]"


def plain_columns(table: pa.Table) -> Rows:
    """Every column as numpy: numbers and times unchanged, text and bytes as `S`.

    A null becomes NaN in floats, NaT in times and empty in texts; elsewhere it is an error.

    >>> import pyarrow as pa
    >>> rows = plain_columns(pa.table({"a": [1, 2], "b": ["x", None]}))
    >>> rows["a"].tolist(), rows["b"].tolist()
    ([1, 2], [b'x', b''])
    """
    return {name: _numpy(table.column(name), name) for name in table.column_names}


def _numpy(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        if column.num_chunks == 0:
            return np.zeros(0, "S1")
        column = column.unify_dictionaries()
        values = _numpy(pa.chunked_array([column.chunk(0).dictionary]), name)
        codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
        none = np.zeros(1, values.dtype)  # found at index -1
        if not _has_null_value(values.dtype) and column.null_count:
            raise _null(name, str(kind.value_type), column.null_count)
        if values.dtype.kind in "fM":
            none[0] = np.nan if values.dtype.kind == "f" else np.datetime64("NaT")
        found: NDArray[Any] = np.concatenate([values, none])[np.concatenate(codes)]
        return found
    if _is_text(kind):
        return _text(column)
    if pa.types.is_fixed_size_list(kind) and not column.null_count:
        flat = _numpy(pc.list_flatten(column), name)
        return flat.reshape(len(column), kind.list_size)
    if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        raise UsageError(
            f"column {name!r} of type {kind} has no fixed width",
            remedy="Leave it out of `columns`, or give a `prepare` that converts it to numbers",
        )
    if column.null_count and not (pa.types.is_floating(kind) or pa.types.is_temporal(kind)):
        raise _null(name, str(kind), column.null_count)
    return np.ascontiguousarray(column.to_numpy())


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _text(column: pa.ChunkedArray) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.cast(pa.large_binary())
    width = max(1, pc.max(pc.binary_length(values)).as_py() or 1)
    return np.array([value or b"" for value in values.to_pylist()], f"S{width}")


def _has_null_value(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "SfM"


def _null(name: str, kind: str, count: int) -> DataError:
    return DataError(
        f"column {name!r} of type {kind} has {count:,} nulls, which numpy cannot hold",
        remedy="Give a `prepare` that fills them, or leave the column out of `columns`",
    )


def decode(
    file: ParquetStamp,
    group: RowGroup,
    columns: Sequence[str],
    dictionaries: Sequence[str],
    prepare: Prepare,
) -> Records:
    """The prepared columns of a row group."""
    table = read_row_groups(file, group, columns, dictionaries)
    try:
        if getattr(prepare, "numbered", False):
            rows = prepare(table, first_row=group.first_row)  # type: ignore[call-arg]
        else:
            rows = prepare(table)
        return Records.of(_checked(rows, group.rows, prepare))
    except HeadraceError as error:
        raise error.within(file=file.path) from None
    except Exception as error:
        last = group.stop - 1
        which = f"{group.first}" if last == group.first else f"{group.first} to {last}"
        error.add_note(f"while preparing row group {which} of {file.path}")
        raise


def _checked(rows: Any, count: int, prepare: Prepare) -> Rows:
    """The result of a `prepare`, or an error that says why it cannot be used."""
    name = getattr(prepare, "__qualname__", type(prepare).__name__)
    if not isinstance(rows, dict) or not rows:
        raise UsageError(
            f"prepare {name} gave {type(rows).__name__}",
            remedy="It must return a dict of numpy arrays",
        )
    for key, column in rows.items():
        if not isinstance(column, np.ndarray) or column.dtype.hasobject or column.ndim < 1:
            kind = getattr(column, "dtype", type(column).__name__)
            raise UsageError(
                f"prepare {name} gave {key!r} as {kind}",
                remedy="Columns must be numpy arrays of numbers, times or bytes, one entry per row",
            )
        if len(column) != count:
            raise UsageError(
                f"prepare {name} gave {len(column):,} entries of {key!r} for {count:,} rows",
                remedy="Columns must keep all rows in their order",
            )
    return {key: np.ascontiguousarray(column) for key, column in rows.items()}


def prepare_key(prepare: Prepare) -> str:
    """A key for what a `prepare` does, so that its stored results can be found again.

    It depends on the function's code, the functions of its module that it calls, the constants that
    these use, and its `version` (any value). Change `version` when anything else changes: other
    modules, classes, files that it reads.
    """
    facts: list[Any] = [getattr(prepare, "__module__", ""), getattr(prepare, "version", None)]
    inner = prepare
    while hasattr(inner, "func"):  # functools.partial
        facts += [inner.args, sorted(inner.keywords.items())]  # type: ignore[attr-defined]
        inner = inner.func
    if isinstance(inner, FunctionType):
        facts += _function_facts(inner, set())
    else:
        facts += [type(inner).__qualname__, pickle.dumps(inner)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _function_facts(function: FunctionType, seen: set[int]) -> list[Any]:
    """A function's code, and the values of the names that it uses."""
    seen.add(id(function))
    code = function.__code__
    facts: list[Any] = [function.__qualname__, _code_facts(code), function.__defaults__]
    facts.append(sorted((function.__kwdefaults__ or {}).items()))
    used = [(name, function.__globals__.get(name)) for name in sorted(_names(code))]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    used += [(name, cell.cell_contents) for name, cell in cells]
    for name, value in used:
        if isinstance(value, FunctionType):
            if value.__module__ == function.__module__ and id(value) not in seen:
                facts += [name, _function_facts(value, seen)]
        elif _is_constant(value):
            facts += [name, value]
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            facts += [name, value.dtype.str, value.shape, value.tobytes()]
    return facts


def _is_constant(value: Any) -> bool:
    """Whether `repr` describes the value completely, and alike in every process."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(map(_is_constant, [*value, *value.values()]))
    return isinstance(value, (bool, int, float, complex, str, bytes))


def _names(code: CodeType) -> set[str]:
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*inner)


def _code_facts(code: CodeType) -> list[Any]:
    constants = [c if not isinstance(c, CodeType) else _code_facts(c) for c in code.co_consts]
    return [code.co_code, code.co_names, constants]


@lru_cache(maxsize=256)
def record_type(fields: tuple[tuple[str, str, tuple[int, ...]], ...]) -> np.dtype[Any]:
    """One field per column, of name, type and shape; the same object for the same fields."""
    return np.dtype(list(fields))


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The rows of a row group.

    >>> records = Records.of({"a": np.arange(3), "b": np.zeros((3, 2), np.uint8)})
    >>> records.rows(1, 3)["a"].tolist(), records.data.shape
    ([1, 2], (3, 10))
    """

    dtype: np.dtype[Any]  #: one field per column, packed
    data: NDArray[np.uint8]  #: [rows, bytes]
    raw: memoryview = field(init=False, repr=False)  #: the same, faster to slice than an array

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.data.data)

    @staticmethod
    def of(rows: Rows) -> Records:
        """Columns of equal length, row by row."""
        dtype = record_type(
            tuple((name, column.dtype.str, column.shape[1:]) for name, column in rows.items())
        )
        count = len(next(iter(rows.values())))
        whole = np.empty(count, dtype)
        for name, column in rows.items():
            whole[name] = column
        return Records(dtype, whole.view(np.uint8).reshape(count, dtype.itemsize))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.data.nbytes

    def rows(self, begin: int, end: int) -> Rows:
        """The columns of some rows, copied."""
        return columns_of(self.data[begin:end], self.dtype)


def columns_of(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> Rows:
    """Bytes of [..., rows, bytes of a row] as columns of [..., rows, ...].

    Numbers are made contiguous. Vectors of bytes, most of what there is to copy, stay where they
    are, with the rest of a row between one and the next.
    """
    whole = np.ascontiguousarray(data).view(dtype)[..., 0]
    columns = {name: whole[name] for name in dtype.names or ()}
    return {
        name: column if column.dtype == np.uint8 else np.ascontiguousarray(column)
        for name, column in columns.items()
    }
