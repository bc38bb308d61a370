"""The on-disk index of a dataset: build, open, verify, splits, registry of known datasets."""

from headrace.catalog.manifest import cache_folder

__all__ = ["cache_folder"]
