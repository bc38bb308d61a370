"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
ROOMS = (
    "errors.py",
    "files.py",
    "config",
    "sampling",
    "reading",
    "decoding",
    "formats",
    "catalog",
    "testing",
    "cli",
)
MODULES = sorted(
    ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts))
    for room in ROOMS
    for path in [ROOT / room, *(ROOT / room).rglob("*.py")]
    if path.suffix == ".py" and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
