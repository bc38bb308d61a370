"""Printing: tables for people, JSON for programs, sizes in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["plural", "print_json", "print_table", "readable_bytes", "readable_count"]


def print_json(value: Any) -> None:
    """A value as JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table on stdout; columns whose name starts with ">" are aligned to the right.

    >>> print_table(["name", ">steps"], [("bridge", "1,031"), ("rt1", "40")])
    name    steps
    ------  -----
    bridge  1,031
    rt1        40
    """
    heads = [column.lstrip(">") for column in columns]
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    rule = ["-" * width if head.strip() else "" for head, width in zip(heads, widths, strict=True)]
    for row in (heads, rule, *cells):
        aligned = (
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        print("  ".join(aligned).rstrip())


def _one_line(text: str, limit: int = 72) -> str:
    """Text from the data, made fit for one line of a terminal."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def readable_bytes(number: float | None) -> str:
    """Bytes with a unit.

    >>> readable_bytes(3_500_000)
    '3.5 MB'
    """
    if number is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def readable_count(number: int | None) -> str:
    """A count with thousands separated; a dash for one that is not known."""
    return "-" if number is None else f"{number:,}"


def plural(number: int, noun: str) -> str:
    """A number and its noun.

    >>> plural(1, "dataset"), plural(2, "dataset")
    ('1 dataset', '2 datasets')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
