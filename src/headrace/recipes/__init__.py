"""Recipes: training programs on public names, to be run by `headrace train` or copied and owned.

A recipe is a package in this folder that is listed in `RECIPES` and has

    conf/config.yaml    its Hydra config, which says `recipe: NAME`, with groups beside it;
    conf/experiment/    one file an experiment: what `headrace train experiment=...` names
    options.py          DEFAULTS: the defaults of config groups, as dataclasses or plain values, by
                        `group` or `group/choice`, for Hydra
                        read(experiment, values) -> options: the composed config as checked
                        dataclasses; no framework is imported for it
    program.py          train(options, run) -> Ended: trains, in a `RunFolder` (see `training`)

`options` has `name` (of the run's folder), `runs` (the folder above it), `resume` (a run or
checkpoint to continue, or None) and `config()` (all values as plain ones, for `--cfg` and
config.yaml). `run` writes nothing before the program calls `run.begin()`, which it does as soon as
everything has been checked that can be checked before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.recipes.training.run_folder import Ended, RunFolder

__all__ = ["RECIPES", "Options", "Recipe"]


class Options(Protocol):
    """What `headrace train` needs to know of a recipe's options."""

    @property
    def name(self) -> str: ...
    @property
    def runs(self) -> str: ...
    @property
    def resume(self) -> str | None: ...
    def config(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe by its name, that of its package; imported when it is used."""

    name: str
    extra: str  #: of the package headrace, which installs what the recipe needs
    frameworks: tuple[str, ...]  #: packages of that extra

    @property
    def conf(self) -> Path:
        """The folder of its configs."""
        return Path(__file__).parent / self.name / "conf"

    def defaults(self) -> Mapping[str, Any]:
        """The defaults of config groups, by `group` or `group/choice`."""
        found: Mapping[str, Any] = self._module("options").DEFAULTS
        return found

    def read(self, experiment: str, values: Mapping[str, Any]) -> Options:
        """The checked options of a composed config."""
        options: Options = self._module("options").read(experiment, values)
        return options

    def train(self, options: Options, run: RunFolder) -> Ended:
        """Train."""
        ended: Ended = self._module("program").train(options, run)
        return ended

    def _module(self, name: str) -> Any:
        try:
            return import_module(f"headrace.recipes.{self.name}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in self.frameworks:
                raise
            raise UsageError(
                f"the recipe {self.name} needs {error.name}, which is not installed",
                remedy=f"pip install 'headrace[{self.extra}]'",
            ) from error


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("laq", "train", ("hydra", "lightning", "torch", "torchmetrics")),
        Recipe("network", "jax", ("jax", "optax")),
    )
}
