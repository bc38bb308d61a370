"""Formats of datasets: find the byte ranges of their values, and decode those."""
