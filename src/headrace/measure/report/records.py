"""Reading JSON that a killed run may have left half written: what is whole is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lines", "finite", "finite_column", "objects", "read_object", "read_text"]

#: Longest text taken from a run into a page; a config or log beyond it is cut, and says so.
_TEXT_LIMIT = 64_000
#: Beyond this a time, rate or size is damage, and would only spoil the axes.
_LARGEST = 1e15


def finite(value: Any) -> float | None:
    """A number as a float; None for whatever is not a usable one.

    >>> finite(3), finite("3"), finite(float("nan")), finite(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= _LARGEST else None
    return value if math.isfinite(value) and abs(value) <= _LARGEST else None


def finite_column(values: Sequence[Any]) -> NDArray[np.float64]:
    """`finite` of many values, NaN in place of None; millions of counts take a fast way."""
    if set(map(type, values)) <= {int, float}:
        try:
            column = np.array(values, dtype=np.float64)
        except OverflowError:  # an integer beyond what a float can hold
            pass
        else:
            column[~(np.abs(column) <= _LARGEST)] = np.nan
            return column
    return np.array([math.nan if (n := finite(v)) is None else n for v in values], dtype=np.float64)


def read_object(path: Path) -> tuple[dict[str, Any], str | None]:
    """A JSON object, and what was wrong with it; empty where there is none."""
    try:
        value = json.loads(path.read_text("utf-8", errors="replace"))
    except FileNotFoundError:
        return (
            {},
            f"{path.name} is missing: the run was killed before it was written, or wrote none",
        )
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read ({_why(error)}): what it held is not shown"
    if not isinstance(value, dict):
        return {}, f"{path.name} holds a {type(value).__name__}, not an object: it is not shown"
    return value, None


class Lines:
    """The whole records of a JSON-lines file, one after the other; then `problem` says the rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: What was wrong with the file; known once all records have been taken.
        self.problem: str | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        name = self._path.name
        whole, bad, number, line = 0, list[int](), 0, "\n"
        try:
            with self._path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        record = None
                    if isinstance(record, dict):
                        whole += 1
                        yield record
                    elif line.strip():
                        bad.append(number)
        except FileNotFoundError:
            self.problem = f"{name} is missing: the run recorded none, or was killed at its start"
            return
        except OSError as error:
            self.problem = f"{name} cannot be read to its end ({_why(error)})"
            return
        kept = f"the {whole:,} whole records are shown"
        if bad == [number] and not line.endswith("\n"):
            self.problem = f"{name} ends in half a line (the run was killed while it wrote): {kept}"
        elif bad:
            where = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            self.problem = f"{name}: {len(bad):,} lines are not records (line {where}): {kept}"
        elif not whole:
            self.problem = f"{name} is empty: the run ended before it had something to record"


def objects(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The entries of an object that are objects themselves."""
    items = value.items() if isinstance(value, dict) else ()
    return [(name, entry) for name, entry in items if isinstance(entry, dict)]


def read_text(path: Path, tail: int | None = None) -> str:
    """A text file, or its last lines; empty where there is none."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    if tail is not None:
        text = "\n".join(text.splitlines()[-tail:])
    if len(text) > _TEXT_LIMIT:
        text = text[:_TEXT_LIMIT] + f"\n... {len(text) - _TEXT_LIMIT:,} more characters"
    return text


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
