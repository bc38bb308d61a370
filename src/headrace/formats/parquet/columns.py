"""A decoded row group as numpy columns of fixed width: what windows are cut from."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Prepare", "Rows", "checked", "plain_columns", "prepare_key"]

Rows: TypeAlias = dict[str, NDArray[Any]]
#: Turns a decoded piece into columns, once; rows stay in their order. With an attribute `numbered`
#: that is true it is also given `first_row`, the number of the piece's first row in its file.
Prepare: TypeAlias = "Callable[[pa.Table], Rows]"


def plain_columns(table: pa.Table) -> Rows:
    """Every column as numpy: numbers and times as they are, text and bytes as `S`.

    A null is NaN among floats, NaT among times and empty among texts; elsewhere it is an error.

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
        none = np.zeros(1, values.dtype)  # what index -1 finds
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
            remedy="Leave it out of `columns`, or give a `prepare` that makes numbers of it",
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


def checked(rows: Any, count: int, prepare: Prepare) -> Rows:
    """What a `prepare` gave, if it can be used."""
    name = getattr(prepare, "__qualname__", type(prepare).__name__)
    if not isinstance(rows, dict) or not rows:
        raise UsageError(
            f"prepare {name} gave {type(rows).__name__}", remedy="It returns a dict of numpy arrays"
        )
    for key, column in rows.items():
        if not isinstance(column, np.ndarray) or column.dtype.hasobject or column.ndim < 1:
            kind = getattr(column, "dtype", type(column).__name__)
            raise UsageError(
                f"prepare {name} gave {key!r} as {kind}",
                remedy="Columns are numpy arrays of numbers, times or bytes, one entry a row",
            )
        if len(column) != count:
            raise UsageError(
                f"prepare {name} gave {len(column):,} entries of {key!r} for {count:,} rows",
                remedy="Columns keep all rows in their order",
            )
    return {key: np.ascontiguousarray(column) for key, column in rows.items()}


def prepare_key(prepare: Prepare) -> str:
    """A name for what a `prepare` does, so that what it made can be found again.

    It follows the function's own code, the functions of its module that it calls, the constants
    that these use, and its `version` (any value). Raise `version` when anything else changes: other
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
    """A function's code, and what the names in it stand for."""
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
    """Whether `repr` says all of it, in every process alike."""
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
