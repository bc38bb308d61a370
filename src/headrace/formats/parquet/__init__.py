"""Parquet files: footers, row groups as fixed-width columns, and keeping those at hand."""
