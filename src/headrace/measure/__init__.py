"""Measuring: what the machine could do, and what a loader does."""
