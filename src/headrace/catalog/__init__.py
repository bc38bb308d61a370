"""The on-disk index of a dataset: build, open, verify, splits, registry of known datasets."""
