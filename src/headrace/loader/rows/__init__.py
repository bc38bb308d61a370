"""From windows of rows to batches: the loader for tables."""

from headrace.loader.rows.loader import RowLoader
from headrace.loader.rows.rowset import RowSet

__all__ = ["RowLoader", "RowSet"]
