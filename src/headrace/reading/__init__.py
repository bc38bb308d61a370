"""Byte ranges: fetch exactly the bytes asked for."""
