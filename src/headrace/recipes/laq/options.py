"""What `headrace train` is told about a latent-action run, checked before torch is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from headrace.config import Mixture
from headrace.config.typed import plain, typed
from headrace.errors import UsageError
from headrace.recipes.laq.config import LaqConfig, TrainingConfig
from headrace.recipes.training.compose import Composed
from headrace.recipes.training.made_data import MadeData

__all__ = ["DataOptions", "LaqRun", "LoaderChoices", "LoggingOptions", "TrainingOptions", "checked"]

_PRESETS = ("full", "lapa", "small", "tiny")


@dataclass(frozen=True, slots=True)
class LoaderChoices:
    """Options of `HeadraceDataModule`; None: its default."""

    batch_size: int = 32  #: samples a rank takes a batch
    image_size: int | None = None  #: must be the model's
    seed: int | None = None  #: None: that of the training
    metadata: Literal["none", "dataset", "full"] = "full"
    workers: int | None = None
    memory: int | str | None = None
    keep_free: int | str | None = None
    resize: str = "bilinear"
    on_error: Literal["raise", "skip"] = "raise"
    max_errors: int = 100
    pin: bool | None = None
    decode: Literal["cpu", "gpu", "auto"] = "cpu"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size is {self.batch_size}", remedy="Give 1 or more")

    def given(self) -> dict[str, Any]:
        """Those that are not left to the data module; the image size is the model's affair."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: v for k, v in values.items() if v is not None and k != "image_size"}


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Which samples, and how they are loaded."""

    mixture: str | Mapping[str, Any] = "oxe29"  #: packaged, a YAML file, or the mixture itself
    root: str | None = None  #: folder above the datasets known by name
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: over the mixture's
    sources: Mapping[str, Any] = field(default_factory=dict)  #: over the mixture's, by name
    synth: MadeData | None = None  #: datasets to generate where there is no root
    loader: LoaderChoices = field(default_factory=LoaderChoices)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How it is trained. conf/training/default.yaml says what each means."""

    steps: int = 100_000
    lr: float = 1e-4
    min_lr: float = 1e-6
    warmup: int = 1000
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 42
    accumulate: int = 1
    precision: str = "auto"
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    compile: bool = False
    ema: float | None = None
    val_every: int = 1000
    val_batches: int = 20
    pictures: bool = True
    checkpoint_every: int = 1000
    checkpoint_minutes: float = 30
    keep: int = 3
    resume: str | None = None
    init_from: str | None = None
    profiler: Literal["none", "simple", "trace"] = "simple"
    peak_flops: float | None = None
    limits: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "val_every", "checkpoint_every", "nodes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give 1 or more")
        if self.devices == 0 or self.devices < -1:
            raise UsageError(f"devices is {self.devices}", remedy="Give 1 or more, or -1 for all")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"ema is {self.ema}", remedy="Give a decay between 0 and 1, as 0.999")
        if self.resume and self.init_from:
            raise UsageError(
                "both resume and init_from are given",
                remedy="resume goes on with a run; init_from begins one with other weights",
            )
        _shared(self)

    def config(self, batch_size: int, precision: str) -> TrainingConfig:
        """As the model's task has it."""
        return replace(_shared(self), batch_size=batch_size, precision=precision)


def _shared(options: TrainingOptions) -> TrainingConfig:
    names = [each.name for each in fields(TrainingConfig)]
    rest = [name for name in names if name not in ("precision", "batch_size")]
    return TrainingConfig(**{name: getattr(options, name) for name in rest})


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Where figures go. conf/logging/default.yaml says what each means."""

    runs: str = "runs"
    every: int = 10
    print_every: int = 100
    progress_bar: bool = False
    tensorboard: bool = True
    wandb: bool = False
    project: str = "headrace"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("every", "print_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give 1 or more")


@dataclass(frozen=True, slots=True)
class _Groups:
    """The config as it is composed; the model is read after its preset."""

    data: DataOptions
    model: Mapping[str, Any]
    training: TrainingOptions
    logging: LoggingOptions
    recipe: str = "laq"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LaqRun:
    """A run that can be: every value checked, the image sizes agreed."""

    experiment: str
    name: str  #: of the run's folder
    data: DataOptions
    preset: str  #: what the model's values began with
    model: LaqConfig
    training: TrainingOptions
    logging: LoggingOptions

    def config(self) -> dict[str, Any]:
        """All of it as plain values, as `--cfg` prints and config.yaml keeps them."""
        return {
            "experiment": self.experiment,
            "recipe": "laq",
            "name": self.name,
            "data": plain(self.data),
            "model": {"preset": self.preset, **plain(self.model)},
            "training": plain(self.training),
            "logging": plain(self.logging),
        }

    def mixture(self, root: Path | None = None) -> Mixture:
        """The mixture with the config's changes; `root` is where data were generated."""
        data = self.data
        folder = data.root or (None if root is None else str(root))
        overrides = [] if folder is None else [f"root={json.dumps(folder)}"]
        overrides += [f"defaults.{key}={json.dumps(value)}" for key, value in data.defaults.items()]
        for name, changes in data.sources.items():
            if not isinstance(changes, Mapping):
                raise UsageError(
                    f"data.sources.{name} is {changes!r}, not a group of keys",
                    remedy=f"Write data.sources.{name}.weight=0.1",
                )
            overrides += [f"sources.{name}.{k}={json.dumps(v)}" for k, v in changes.items()]
        try:
            return _mixture(data.mixture, overrides)
        except UsageError as error:
            if "there is no root" in error.problem:
                remedy = "Give data.root=FOLDER, the folder above the datasets"
                raise UsageError(f"data.mixture: {error.problem}", remedy=remedy) from None
            raise UsageError(f"data.mixture: {error}", remedy=None) from None


def _mixture(given: str | Mapping[str, Any], overrides: list[str]) -> Mixture:
    from headrace.config.documents import overridden

    if isinstance(given, str):
        return Mixture.load(given, overrides)
    values = plain(given)  # a copy: overrides change it
    return Mixture.from_dict(overridden(values, overrides), Path.cwd())


def checked(composed: Composed) -> LaqRun:
    """The run that a composed config describes; nothing is opened but the mixture's file."""
    groups = typed(_Groups, composed.values)
    preset, model = _model(groups.model)
    size = groups.data.loader.image_size
    if size is not None and size != model.image_size:
        raise UsageError(
            f"data.loader.image_size is {size} but model.image_size is {model.image_size}",
            remedy="Set model.image_size alone: the loader takes it",
        )
    name = groups.name or composed.experiment
    run = LaqRun(
        composed.experiment, name, groups.data, preset, model, groups.training, groups.logging
    )
    _check_teachers(model)
    _check_validation(run)
    for key in ("resume", "init_from"):
        _check_path(key, getattr(groups.training, key))
    return run


def _model(values: Mapping[str, Any]) -> tuple[str, LaqConfig]:
    given = dict(values)
    preset = given.pop("preset", "full")
    if preset not in _PRESETS:
        raise UsageError(f"model.preset is {preset!r}", remedy=f"Give one of {', '.join(_PRESETS)}")
    base = LaqConfig() if preset == "full" else getattr(LaqConfig, preset)()
    return preset, typed(LaqConfig, {**plain(base), **given}, "model")


def _check_teachers(model: LaqConfig) -> None:
    """A teacher that must be there; one that need not be is told of when the model is made."""
    if not model.teachers_required:
        return
    asked = {
        "dino_weights": model.features == "dino",
        "flow_weights": model.flow_decoder,
    }
    for key in (key for key, needed in asked.items() if needed):
        path = getattr(model, key)
        if path is None or not Path(path).is_file():
            problem = "is not set" if path is None else f"is {path}, and there is no such file"
            raise UsageError(
                f"model.{key} {problem}",
                remedy="Give a local file, nothing is downloaded; or train without "
                "(model.teachers_required=false)",
            )


def _check_validation(run: LaqRun) -> None:
    if run.data.root is None and run.data.synth is not None:
        mixture = run.mixture(Path("generated"))
    else:
        mixture = run.mixture()
    if run.training.val_batches and not any(source.val_split for source in mixture.active):
        raise UsageError(
            "no source of data.mixture has a val_split, so there is nothing to validate on",
            remedy="Give one (data.defaults.val_split='train[90%:]'), "
            "or train without (training.val_batches=0)",
        )


def _check_path(key: str, path: str | None) -> None:
    if path is not None and path != "auto" and not Path(path).exists():
        raise UsageError(
            f"training.{key} is {path!r}, and there is no such file",
            remedy="Checkpoints lie in checkpoints/ of a run's folder",
        )
