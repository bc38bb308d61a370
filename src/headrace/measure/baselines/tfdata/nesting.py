"""Flattened keys and TFDS's nested dicts: `observation/present/xyz` may be two levels or three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["get", "path_of", "put"]


def path_of(features: Any, key: str) -> tuple[str, ...]:
    """The names to go down by, in a tree of features whose names may contain slashes.

    >>> path_of({"a": {"b/c": 1, "b": {"d": 2}}}, "a/b/c")
    ('a', 'b/c')
    """
    for name in features:
        if name == key:
            return (name,)
        if key.startswith(f"{name}/") and hasattr(features[name], "keys"):
            try:
                return (name, *path_of(features[name], key[len(name) + 1 :]))
            except KeyError:
                continue
    raise KeyError(key)


def get(tree: Any, path: Sequence[str]) -> Any:
    """What lies at a path."""
    for name in path:
        tree = tree[name]
    return tree


def put(tree: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Place a value at a path; the tree itself.

    >>> put({"a": {"b": 1}}, ["a", "c"], 2)
    {'a': {'b': 1, 'c': 2}}
    """
    inner = tree
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return tree
