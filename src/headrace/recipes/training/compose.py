"""Experiments as Hydra configs: composed in this process, without torch, without output folders.

Hydra follows the defaults lists and applies the overrides. Two things are added to it: a mistyped
key is reported with the nearest known one (overrides may set any key, and the recipe's dataclasses
then name those they do not have), and values that are not of Hydra's grammar, as split expressions,
need no quotes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import nearest, plain, read_document, shown
from headrace.errors import UsageError
from headrace.recipes import RECIPES, Recipe

#: Keys of the scripts that users come from, and what they are called here; "": nothing is needed.
#: docs/guides/from_scripts.md explains them.
OLD_KEYS = {
    "training.max_steps": "training.steps",
    "training.max_epochs": "",
    "training.enable_progress_bar": "logging.progress_bar",
    "training.profiler.enabled": "training.profiler",
    "training.validation.check_interval": "training.val_every",
    "training.validation.limit_batches": "training.val_batches",
    "training.validation.num_sanity_val_steps": "training.sanity_val_batches",
    "training.validation.visualization.enabled": "training.pictures",
    "training.train_visualization.enabled": "",
    "logging.use_wandb": "logging.wandb",
    "data.datasets": "data.mixture",
    "data.image_size": "model.image_size",
    "data.num_workers": "",
    "data.loader.num_workers": "data.loader.workers",
    "data.loader.pin_memory": "data.loader.pin",
    "data.samples_per_episode": "data.defaults.samples_per_episode",
    "data.adapter.tf.sampling.samples_per_episode": "data.defaults.samples_per_episode",
    "data.adapter.tf.metadata.mode": "data.loader.metadata",
    "data.episode_shuffle_buffer": "data.tfdata.shuffle.episode_buffer",
    "data.pair_shuffle_buffer": "data.tfdata.shuffle.global_buffer",
    "data.prefetch_buffer": "data.tfdata.prefetch.final_stream_buffer",
    "data.episode_prefetch": "data.tfdata.prefetch.episode_queue_buffer",
    "data.num_parallel_episodes": "data.tfdata.pipeline.episode_concurrency",
    "data.num_parallel_calls": "data.tfdata.pipeline.transform_parallelism",
    "data.multi_dataset_parallelism_mode": "data.tfdata.mixing.parallelism_mode",
    "data.multi_dataset_mix_block_length": "data.tfdata.mixing.mix_block_length",
    "data.multi_dataset_mixing_strategy": "data.tfdata.mixing.strategy",
    "data.multi_dataset_per_dataset_prefetch_buffer": (
        "data.tfdata.prefetch.per_dataset_stream_buffer"
    ),
    "data.multi_dataset_private_threadpool_size": (
        "data.tfdata.mixing.per_dataset_private_threadpool_size"
    ),
    "data.adapter.tf": "data.tfdata",
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A config that can be trained."""

    name: str
    recipe: Recipe
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
    """What a command line means."""

    experiment: str
    recipe: Recipe
    values: dict[str, Any]  #: resolved, not yet checked by the recipe


def experiments(folders: Sequence[Path] = ()) -> dict[str, Experiment]:
    """All experiments by name: those of the recipes and those of the user's config folders."""
    found: dict[str, Experiment] = {}
    for recipe in RECIPES.values():
        for file in sorted((recipe.conf / "experiment").glob("*.yaml")):
            found[file.stem] = Experiment(file.stem, recipe, file)
    packaged = dict(found)
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"there is no config folder {str(folder)!r}",
                remedy="Give one with experiment/NAME.yaml, model/NAME.yaml, ... in it",
            )
        for file in sorted((folder / "experiment").glob("*.yaml")):
            if file.stem in found:
                raise UsageError(
                    f"{file} has the name of another experiment, {found[file.stem].file}",
                    remedy="Rename it: it would never be read",
                )
            found[file.stem] = Experiment(file.stem, _recipe_of(file, packaged), file)
    return found


def compose(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Composed:
    """The config of `experiment=NAME` with `key.path=value` and `group=choice` over it."""
    known = experiments(folders)
    name = _experiment(overrides, known)
    recipe = known[name].recipe
    roots = [recipe.conf, *(Path(folder).absolute() for folder in folders)]
    groups = {each.name for root in roots for each in root.iterdir() if each.is_dir()}
    words = [_word(text, groups, roots) for text in overrides]
    if len(roots) > 1:
        quoted = ", ".join("'" + f"file://{each}".replace("'", "\\'") + "'" for each in roots[1:])
        words.append(f"hydra.searchpath=[{quoted}]")
    return Composed(name, recipe, _composed(name, recipe, words))


def _composed(name: str, recipe: Recipe, words: list[str]) -> dict[str, Any]:
    with _quiet():
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from omegaconf import OmegaConf

        for place, values in recipe.defaults().items():
            group, _, choice = place.partition("/")
            # A key `defaults` at the top would be a defaults list to Hydra; the dataclass has it.
            node = {key: value for key, value in plain(values).items() if key != "defaults"}
            ConfigStore.instance().store(choice or "default", node, group, provider="headrace")
        try:
            with initialize_config_dir(str(recipe.conf), version_base="1.3", job_name="headrace"):
                config = hydra_compose("config", words)
            found: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        except Exception as error:  # Hydra, OmegaConf and YAML each have their own
            problem = " ".join(str(error).split()).rstrip(".")
            raise UsageError(
                f"experiment {name!r} cannot be composed: {problem}",
                remedy="Correct the override or the config file that it names",
            ) from None
    return dict(found)


def _word(text: str, groups: Iterable[str], roots: Sequence[Path]) -> str:
    """An override as Hydra takes it."""
    if text.startswith("~"):
        return text
    key, equals, value = text.lstrip("+").partition("=")
    if not equals or not key:
        raise UsageError(f"override {text!r} has no `=`", remedy="Write key.path=value")
    _refuse_old_key(key)
    if key in groups:
        if key != "experiment":
            _check_choice(key, value, roots)
        return f"{key}={value}"
    with _quiet():
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        try:
            override = OverridesParser.create().parse_override(f"++{key}={value}")
        except HydraException as error:
            if "'" in value or '"' in value:
                raise UsageError(
                    f"override {text!r} cannot be read: {' '.join(str(error).split())}",
                    remedy="Check its quotes",
                ) from None
            escaped = value.replace("\\", "\\\\")
            return f"++{key}='{escaped}'"
    if override.is_sweep_override():
        raise UsageError(
            f"{text!r} asks for several runs",
            remedy="Train one after the other, by `headrace study` for example; "
            f"for a list, write {key}=[{value}]",
        )
    return f"++{key}={value}"


def _refuse_old_key(key: str) -> None:
    old = next((each for each in OLD_KEYS if f"{key}.".startswith(f"{each}.")), None)
    if old is None:
        return
    new = OLD_KEYS[old] and OLD_KEYS[old] + key.removeprefix(old)
    remedy = f"It is called {new} here" if new else "Leave it out: nothing is needed in its place"
    if new.startswith("data.tfdata"):
        remedy = "Leave it out: headrace's own loader has nothing to set in its place. For the "
        remedy += f"tf.data baseline give {new} and data.backend=tfdata"
    raise UsageError(f"unknown key {key}", remedy=remedy)


def _experiment(overrides: Sequence[str], known: Mapping[str, Experiment]) -> str:
    given = [text.partition("=")[2] for text in overrides if text.startswith("experiment=")]
    if not given:
        raise UsageError("no experiment is given", remedy=f"Give experiment={'|'.join(known)}")
    if given[-1] not in known:
        raise UsageError(
            f"there is no experiment {given[-1]!r}",
            remedy=f"{nearest(given[-1], known)}Experiments: {', '.join(known)}.",
        )
    return given[-1]


def _check_choice(group: str, choice: str, roots: Sequence[Path]) -> None:
    names = [file.stem for root in roots for file in sorted((root / group).glob("*.yaml"))]
    if choice not in names:
        raise UsageError(
            f"{group} is {shown(choice)}, which is not a choice of this group",
            remedy=f"{nearest(choice, names)}Choices: {', '.join(dict.fromkeys(names))}.",
        )


def _recipe_of(file: Path, packaged: Mapping[str, Experiment]) -> Recipe:
    """The recipe of a user's experiment: the one it names, or that of the experiment it extends."""
    document = read_document(file, "experiment", [], "defaults")
    named = document.get("recipe")
    if named is None:
        extended = [each for each in document.get("defaults") or () if isinstance(each, str)]
        found = [packaged[each].recipe for each in extended if each in packaged]
        return found[0] if found else RECIPES["laq"]
    if named not in RECIPES:
        raise UsageError(
            f"{file}: recipe is {shown(named)}", remedy=f"Give one of {', '.join(RECIPES)}"
        )
    return RECIPES[named]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the deprecation warnings that some pairs of Hydra and OmegaConf give each other.

    Those have several categories; warnings of other modules pass.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*deprecated", module=r"(hydra|omegaconf)(\.|$)")
        yield
