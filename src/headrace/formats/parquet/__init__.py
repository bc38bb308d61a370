"""Parquet files: row groups as columns of fixed width, kept in memory or on disk."""
