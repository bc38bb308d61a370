"""What `headrace train` is told about a latent-action run, checked before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config import plain, typed
from headrace.errors import UsageError
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.training.options import (
    DataOptions,
    LoggingOptions,
    RunOptions,
    TrainingOptions,
    agreed,
    check_path,
    data_defaults,
)

#: Config groups whose defaults are those of a dataclass: `group`, or `group/choice`.
DEFAULTS = {
    "data/_base": data_defaults(),
    "training": TrainingOptions(),
    "logging": LoggingOptions(),
}

_PRESETS = ("full", "lapa", "small", "tiny")


@dataclass(frozen=True, slots=True)
class LaqOptions(RunOptions):
    """A run of the recipe: every value checked, the image sizes agreed."""

    recipe = "laq"
    data: DataOptions
    model: LaqConfig
    training: TrainingOptions
    logging: LoggingOptions


@dataclass(frozen=True, slots=True)
class _Groups:
    """The config as it is composed; the model is read after its preset."""

    data: DataOptions = field(default_factory=DataOptions)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    recipe: str = "laq"
    name: str | None = None


def read(experiment: str, values: Mapping[str, Any]) -> LaqOptions:
    """The options of a composed config; nothing is opened but the mixture's file."""
    groups = typed(_Groups, {**values, "data": {}})
    preset, model = _model(groups.model)
    groups = typed(_Groups, agreed(values, model.image_size))
    if groups.data.loader.size != (model.image_size, model.image_size):
        size = groups.data.loader.image_size
        raise UsageError(
            f"data.loader.image_size is {size} but model.image_size is {model.image_size}",
            remedy="Set model.image_size alone: the loader takes it",
        )
    if groups.data.loader.frames != "endpoints":
        raise UsageError(
            f"data.loader.frames is {groups.data.loader.frames!r}, but the model takes frame pairs",
            remedy="Leave it at endpoints",
        )
    _check_teachers(model)
    groups.data.check(validated=groups.training.val_batches > 0)
    check_path("training.resume", groups.training.resume)
    check_path("training.init_from", groups.training.init_from)
    return LaqOptions(
        experiment,
        groups.name or experiment,
        groups.data,
        preset,
        model,
        groups.training,
        groups.logging,
    )


def _model(values: Mapping[str, Any]) -> tuple[str, LaqConfig]:
    given = dict(values)
    preset = given.pop("preset", "full")
    if preset not in _PRESETS:
        raise UsageError(f"model.preset is {preset!r}", remedy=f"Give one of {', '.join(_PRESETS)}")
    base = LaqConfig() if preset == "full" else getattr(LaqConfig, preset)()
    return preset, typed(LaqConfig, {**plain(base), **given}, "model")


def _check_teachers(model: LaqConfig) -> None:
    """Refuse a required teacher without a file; others are reported when the model is built."""
    if not model.teachers_required:
        return
    needed = {"dino_weights": model.features == "dino", "flow_weights": model.flow_decoder}
    for key in (key for key, used in needed.items() if used):
        path = getattr(model, key)
        if path is None or not Path(path).is_file():
            problem = "is not set" if path is None else f"is {path}, and there is no such file"
            raise UsageError(
                f"model.{key} {problem}",
                remedy="Give a local file, nothing is downloaded; or train without "
                "(model.teachers_required=false)",
            )
