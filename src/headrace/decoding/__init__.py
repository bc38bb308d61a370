"""Encoded images into pixels: header, JPEG, PNG. Opens no file, starts no thread."""
