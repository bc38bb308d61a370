"""Every recipe has what `headrace train` needs of it."""

import ast
from dataclasses import is_dataclass

import pytest

pytest.importorskip("hydra")

from headrace.config import read_document
from headrace.recipes import RECIPES
from headrace.recipes.training.compose import experiments


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_has_configs_options_and_a_program(recipe):
    config = read_document(recipe.conf / "config.yaml", "config", [], "defaults")
    assert config["recipe"] == recipe.name
    assert recipe.name in {each.recipe.name for each in experiments().values()}
    groups = {folder.name for folder in recipe.conf.iterdir() if folder.is_dir()}
    named = {key for each in config["defaults"] if isinstance(each, dict) for key in each}
    for place, values in recipe.defaults().items():
        assert place.split("/")[0] in groups | named
        assert is_dataclass(values) or isinstance(values, dict)
    # The program may need frameworks, so it is read and not imported.
    program = ast.parse((recipe.conf.parent / "program.py").read_text())
    (train,) = [n for n in program.body if isinstance(n, ast.FunctionDef) and n.name == "train"]
    assert [argument.arg for argument in train.args.args] == ["options", "run"]


def test_experiments_have_different_names_and_say_what_they_are():
    assert all(experiment.about for experiment in experiments().values())
