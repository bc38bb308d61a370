"""Encoded images into pixels: header, JPEG, PNG, resize. Opens no file, starts no thread."""
