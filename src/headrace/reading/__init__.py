"""Byte ranges: read exactly the bytes requested."""
