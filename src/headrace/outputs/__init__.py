"""Batches for the frameworks that train on them: the only rooms that import frameworks."""
