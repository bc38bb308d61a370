"""Experiments as Hydra configs: composed in this process, without torch, without output folders.

A recipe has a folder `conf` with `config.yaml` and the groups experiment, data, model, training and
logging. Hydra follows the defaults lists; overrides of single keys are applied here, so that a typo
is answered in the same words wherever it stands, and split expressions need no quoting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.documents import parse_override, read_document
from headrace.config.typed import nearest, shown
from headrace.errors import UsageError

__all__ = ["Composed", "Experiment", "compose", "experiments"]

_RECIPES = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A config that can be trained."""

    name: str
    recipe: str
    file: Path

    @property
    def about(self) -> str:
        """The first comment of its file."""
        for line in self.file.read_text("utf-8").splitlines():
            text = line.lstrip("# ").strip()
            if line.startswith("#") and text and not text.startswith("@package"):
                return text
        return ""


@dataclass(frozen=True, slots=True)
class Composed:
    """A command line, understood."""

    experiment: str
    recipe: str
    values: dict[str, Any]  #: resolved, not yet checked by the recipe


def experiments(folders: Sequence[Path] = ()) -> dict[str, Experiment]:
    """All experiments by name: those of the recipes and those of the user's config folders."""
    found: dict[str, Experiment] = {}
    for conf in _confs().values():
        for file in sorted((conf / "experiment").glob("*.yaml")):
            found[file.stem] = Experiment(file.stem, conf.parent.name, file)
    for folder in folders:
        for file in sorted((_checked_folder(folder) / "experiment").glob("*.yaml")):
            if file.stem in found:
                raise UsageError(
                    f"{file} has the name of another experiment, {found[file.stem].file}",
                    remedy="Rename it: it would never be read",
                )
            found[file.stem] = Experiment(file.stem, _recipe_of(file), file)
    return found


def compose(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Composed:
    """The config of `experiment=NAME` with `key.path=value` and `group=choice` over it."""
    known = experiments(folders)
    given = [_Override.of(text) for text in overrides]
    name = _chosen([each for each in given if each.key == "experiment"], known)
    conf = _confs()[known[name].recipe]
    groups = {each.name for each in conf.iterdir() if each.is_dir()}
    roots = [conf, *(Path(folder).absolute() for folder in folders)]
    choices = [each for each in given if each.key in groups]
    for each in choices:
        _check_choice(each, roots)
    values = _composed(name, conf, roots[1:], choices)
    for each in given:
        if each.key not in groups:
            _apply(values, each)
    return Composed(name, known[name].recipe, _resolved(values, name))


@dataclass(frozen=True, slots=True)
class _Override:
    """`key.path=value`, or `~key.path` to leave a key out."""

    key: str
    value: Any
    removes: bool = False

    @staticmethod
    def of(text: str) -> _Override:
        if text.startswith("~"):
            return _Override(text[1:].partition("=")[0], None, removes=True)
        key, equals, value = text.lstrip("+").partition("=")
        if not equals or not key:
            raise UsageError(f"override {text!r} has no `=`", remedy="Write key.path=value")
        return _Override(key, _parsed(key, value, text))


def _parsed(key: str, value: str, text: str) -> Any:
    """The value by Hydra's grammar, else as YAML: `train[:90%]` is no value to Hydra."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return parse_override(text.lstrip("+"))[1]
    if override.is_sweep_override():
        raise UsageError(
            f"{text!r} asks for several runs",
            remedy="Train one after the other, by `headrace study` for example; "
            f"for a list, write {key}=[{value}]",
        )
    found: Any = override.value()
    return _unquoted(found)


def _unquoted(value: Any) -> Any:
    """Hydra's own strings with quotes as plain ones, also inside lists and groups."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_unquoted(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _unquoted(each) for key, each in value.items()}
    return value


def _chosen(given: Sequence[_Override], known: Mapping[str, Experiment]) -> str:
    if not given:
        raise UsageError("no experiment is given", remedy=f"Give experiment={'|'.join(known)}")
    name = str(given[-1].value)
    if name not in known:
        raise UsageError(
            f"there is no experiment {name!r}",
            remedy=f"{nearest(name, known)}Experiments: {', '.join(known)}.",
        )
    return name


def _check_choice(given: _Override, roots: Sequence[Path]) -> None:
    files = [file for root in roots for file in sorted((root / given.key).glob("*.yaml"))]
    names = [file.stem for file in files if not file.stem.startswith("_")]
    if given.value not in names:
        raise UsageError(
            f"{given.key} is {shown(given.value)}, which is no choice of this group",
            remedy=f"{nearest(str(given.value), names)}Choices: {', '.join(dict.fromkeys(names))}.",
        )


def _composed(
    name: str, conf: Path, folders: Sequence[Path], choices: Sequence[_Override]
) -> dict[str, Any]:
    """What the defaults lists make of it; `${...}` not yet resolved."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    asked = [f"{each.key}={each.value}" for each in choices]
    if folders:
        quoted = ", ".join("'" + f"file://{each}".replace("'", "\\'") + "'" for each in folders)
        asked.append(f"hydra.searchpath=[{quoted}]")
    try:
        with initialize_config_dir(str(conf), version_base="1.3", job_name="headrace"):
            config = hydra_compose("config", asked)
        found: Any = OmegaConf.to_container(config, resolve=False)
    except Exception as error:  # Hydra's, OmegaConf's and YAML's: all mean the config files
        words = " ".join(str(error).split())
        raise UsageError(
            f"experiment {name!r} cannot be composed: {words}",
            remedy="Correct the defaults lists of your config folder",
        ) from None
    return dict(found)


def _apply(values: dict[str, Any], given: _Override) -> None:
    *groups, last = given.key.split(".")
    inner, path = values, ""
    for group in groups:
        path = f"{path}.{group}" if path else group
        below = inner.get(group)
        if below is None:
            below = inner[group] = {}
        if not isinstance(below, dict):
            raise UsageError(
                f"{given.key} cannot be set: {path} is {shown(below)}, not a group of keys",
                remedy=f"Set {path} itself, or look at the keys with --cfg",
            )
        inner = below
    if given.removes:
        inner.pop(last, None)
    else:
        inner[last] = given.value


def _resolved(values: dict[str, Any], name: str) -> dict[str, Any]:
    from omegaconf import OmegaConf

    try:
        found: Any = OmegaConf.to_container(
            OmegaConf.create(values), resolve=True, throw_on_missing=True
        )
    except Exception as error:
        words = " ".join(str(error).split())
        raise UsageError(
            f"experiment {name!r} cannot be resolved: {words}", remedy="Correct the key it names"
        ) from None
    return dict(found)


def _confs() -> dict[str, Path]:
    """The config folders of the recipes, by recipe."""
    return {file.parents[1].name: file.parent for file in _RECIPES.glob("*/conf/config.yaml")}


def _recipe_of(file: Path) -> str:
    """The recipe that a user's experiment is of: as it says, else the only one there is."""
    recipes = sorted(_confs())
    named = read_document(file, "experiment", [], "defaults").get("recipe")
    if named is None and len(recipes) == 1:
        return recipes[0]
    if named not in recipes:
        raise UsageError(
            f"{file}: recipe is {shown(named)}", remedy=f"Give one of {', '.join(recipes)}"
        )
    return str(named)


def _checked_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(
            f"there is no config folder {str(folder)!r}",
            remedy="Give one with experiment/NAME.yaml, model/NAME.yaml, ... in it",
        )
    return folder
