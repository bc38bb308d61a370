"""Recipes can be copied out of the package and owned: they import public names only."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import headrace

RECIPES = Path(headrace.__file__).parent / "recipes"
MODULES = sorted(RECIPES.glob("*/*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_imports_only_what_a_room_exports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert not any(name.startswith("headrace.") for name in names), names
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "headrace":
            continue
        parts = node.module.split(".")
        if parts[1:2] == ["recipes"]:
            continue
        depth = 3 if parts[1:2] == ["outputs"] else 2
        assert len(parts) <= depth, f"{path.name} imports from {node.module}"
        try:
            exported = import_module(node.module).__all__
        except headrace.UsageError:
            pytest.skip(f"{node.module} needs a framework that is not installed")
        for alias in node.names:
            assert alias.name in exported, f"{path.name} imports {node.module}.{alias.name}"
