"""What `headrace train` is told about a run on network measurements; read without JAX."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import headrace
from headrace import RowOptions
from headrace.catalog import cache_folder
from headrace.config import plain, typed
from headrace.errors import UsageError
from headrace.recipes.network.config import ModelConfig, TrainingConfig
from headrace.recipes.training.options import RunOptions, check_path, generated_once
from headrace.testing import synthesize_network

_PRESETS = ("base", "tiny")


@dataclass(frozen=True, slots=True)
class SyntheticRows:
    """Measurements of `headrace synth --preset network`, generated once into the cache."""

    files: int = 8
    rows: int = 4096  #: of each file
    seed: int = 0

    def folder(self) -> Path:
        """Where they are, or would be."""
        words = json.dumps([asdict(self), headrace.__version__]).encode()
        return cache_folder() / "synth" / f"network-{hashlib.sha256(words).hexdigest()[:16]}"

    def make(self) -> Path:
        """The folder with the files; generated unless it is there already."""

        def write(folder: Path) -> None:
            synthesize_network(folder, rows=self.rows, files={"train": self.files}, seed=self.seed)

        return generated_once(self.folder(), write) / "train"


@dataclass(frozen=True, slots=True)
class NetworkData:
    """Which rows, and how they are loaded."""

    root: str | None = None  #: folder of Parquet files, such as DATA/train; null: generated rows
    synth: SyntheticRows = field(default_factory=SyntheticRows)
    loader: RowOptions = field(default_factory=lambda: RowOptions(batch_size=16))


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where a run is archived, and how often it reports."""

    runs: str = "runs"  #: folder of the run folders
    print_every: int = 10  #: steps between two lines and two rows of metrics.csv

    def __post_init__(self) -> None:
        if self.print_every < 1:
            raise UsageError(f"print_every is {self.print_every}", remedy="Give 1 or more")


@dataclass(frozen=True, slots=True)
class NetworkOptions(RunOptions):
    """A run of the recipe, every value checked."""

    recipe = "network"
    data: NetworkData
    model: ModelConfig
    training: TrainingConfig
    logging: Reporting


#: Config groups whose defaults are those of a dataclass.
DEFAULTS = {"data": NetworkData(), "training": TrainingConfig(), "logging": Reporting()}


@dataclass(frozen=True, slots=True)
class _Groups:
    """The config as it is composed; the model is read after its preset."""

    data: NetworkData = field(default_factory=NetworkData)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    logging: Reporting = field(default_factory=Reporting)
    recipe: str = "network"
    name: str | None = None


def read(experiment: str, values: Mapping[str, Any]) -> NetworkOptions:
    """The options of a composed config."""
    groups = typed(_Groups, values)
    given = dict(groups.model)
    preset = given.pop("preset", "base")
    if preset not in _PRESETS:
        raise UsageError(f"model.preset is {preset!r}", remedy=f"Give one of {', '.join(_PRESETS)}")
    base: ModelConfig = getattr(ModelConfig, preset)()
    model = typed(ModelConfig, {**plain(base), **given}, "model")
    check_path("training.resume", groups.training.resume)
    return NetworkOptions(
        experiment,
        groups.name or experiment,
        groups.data,
        preset,
        model,
        groups.training,
        groups.logging,
    )
