"""The on-disk index of a dataset: build, open, verify, splits, and the registry of known datasets."""
