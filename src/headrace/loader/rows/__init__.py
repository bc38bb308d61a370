"""From windows of rows to batches: the loader for tables."""

from headrace.loader.rows.loader import RowLoader
from headrace.loader.rows.rowset import RowSet
from headrace.loader.rows.work import RowTransform, WindowDraw

__all__ = ["RowLoader", "RowSet", "RowTransform", "WindowDraw"]
