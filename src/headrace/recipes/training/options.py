"""What recipes on mixtures are told about data, training and logging; read without any framework.

The defaults of all these keys stand here and nowhere else: configs say what differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import headrace
from headrace.catalog import cache_folder
from headrace.config import Mixture, overridden, plain
from headrace.errors import UsageError
from headrace.loader import LoaderOptions
from headrace.measure.baselines import JOB_KEYS, check_installed, find_baseline
from headrace.testing import synthesize

# -- data ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions(LoaderOptions):
    """The options of a loader, and those that `HeadraceDataModule` adds."""

    batch_size: int = 32  #: samples of a batch of one rank
    pin: bool | None = None  #: batches in pinned memory; None: if they are sent to a GPU
    decode: Literal["cpu", "gpu", "auto"] = "cpu"  #: auto: where the run is faster

    def loader(self) -> LoaderOptions:
        """Those of the loader alone."""
        return LoaderOptions(
            **{each.name: getattr(self, each.name) for each in fields(LoaderOptions)}
        )


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Datasets of `headrace synth`, generated once into the cache."""

    only: tuple[str, ...]  #: registry names
    episodes: int = 32  #: of each
    seed: int = 0
    preset: str = "oxe29"
    max_steps: int | None = None  #: of an episode
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: of the mixture of them

    def mixture(self) -> dict[str, Any]:
        """All of them, as `data.mixture` would give them."""
        return {"defaults": plain(self.defaults), "sources": [{"name": n} for n in self.only]}

    def folder(self) -> Path:
        """Where they are, or would be."""
        made_of = {key: value for key, value in asdict(self).items() if key != "defaults"}
        words = json.dumps([made_of, headrace.__version__]).encode()
        return cache_folder() / "synth" / hashlib.sha256(words).hexdigest()[:16]

    def make(self) -> Path:
        """The folder with the datasets; generated unless it is there already."""

        def write(folder: Path) -> None:
            folder.mkdir(parents=True)
            synthesize(
                folder,
                preset=self.preset,
                only=self.only,
                episodes=self.episodes,
                seed=self.seed,
                _max_steps=self.max_steps,
            )

        return generated_once(self.folder(), write)


def generated_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """A folder that `write` fills, unless it is there already; never half filled."""
    if folder.is_dir():
        return folder
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        write(aside)
        aside.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another run was faster
            raise UsageError(
                f"data cannot be generated in {str(folder.parent)!r}: {error.strerror}",
                remedy="Set HEADRACE_CACHE to a folder with space, or give data.root",
            ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Which samples, and how they are loaded."""

    #: packaged, a YAML file, or {sources: [...]}; None: the datasets of `synth`
    mixture: str | Mapping[str, Any] | None = "oxe29"
    root: str | None = None  #: folder above the datasets that are known by name
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: over the mixture's own
    sources: Mapping[str, Any] = field(default_factory=dict)  #: likewise, by name
    only: tuple[str, ...] = ()  #: the sources to train on, by name; none: all
    synth: SyntheticData | None = None  #: used where there is neither mixture nor root
    loader: LoadingOptions = field(default_factory=LoadingOptions)
    backend: Literal["headrace", "tfdata"] = "headrace"  #: tfdata: the baseline, to compare with
    tfdata: Mapping[str, Any] = field(default_factory=dict)  #: its options: {mixing: {strategy: ...

    @property
    def backend_options(self) -> dict[str, Any]:
        """Those of the baseline, by dotted keys."""
        found: dict[str, Any] = {}
        for key, value in self.tfdata.items():
            inner = value if isinstance(value, Mapping) else {"": value}
            found |= {f"{key}.{name}".rstrip("."): each for name, each in inner.items()}
        return found

    @property
    def ignored(self) -> list[str]:
        """Keys of the loader that were given and that the baseline does not have."""
        default, common = LoadingOptions(), (*JOB_KEYS, "action")
        names = [each.name for each in fields(LoadingOptions) if each.name not in common]
        return [name for name in names if getattr(self.loader, name) != getattr(default, name)]

    @property
    def generated(self) -> SyntheticData | None:
        """The datasets to generate; None: the data are there."""
        return self.synth if self.mixture is None and self.root is None else None

    def open_mixture(self) -> Mixture:
        """The mixture with the changes of the config."""
        mixture, folder = self.mixture, self.root
        if mixture is None:
            if self.synth is None:
                raise UsageError(
                    "data.mixture is null, and data.synth names no datasets to generate",
                    remedy="Give data.mixture=FILE",
                )
            mixture = self.synth.mixture()
        if self.generated is not None:
            folder = str(self.generated.folder())
        overrides = [] if folder is None else [f"root={json.dumps(folder)}"]
        overrides += [f"defaults.{key}={json.dumps(value)}" for key, value in self.defaults.items()]
        for name, changes in self.sources.items():
            if not isinstance(changes, Mapping):
                raise UsageError(
                    f"data.sources.{name} is {changes!r}, not a group of keys",
                    remedy=f"Write data.sources.{name}.weight=0.1",
                )
            overrides += [f"sources.{name}.{k}={json.dumps(v)}" for k, v in changes.items()]
        overrides += [f"only={json.dumps(self.only)}"] if self.only else []
        try:
            if isinstance(mixture, str):
                return Mixture.load(mixture, overrides)
            # A copy, because overrides change it.
            return Mixture.from_dict(overridden(plain(mixture), overrides), Path.cwd())
        except UsageError as error:
            if "there is no root" in error.problem:
                remedy = "Give data.root=FOLDER, the folder above the datasets"
                raise UsageError(f"data.mixture: {error.problem}", remedy=remedy) from None
            raise UsageError(f"data.mixture: {error}", remedy=None) from None

    def check(self, *, validated: bool) -> None:
        """Read the mixture, before anything is generated; `validated`: it needs a val_split."""
        if self.backend != "headrace":
            baseline = find_baseline(self.backend)
            baseline.check(baseline.with_defaults(self.backend_options))
            check_installed(baseline)
        elif self.tfdata:
            raise UsageError(
                "data.tfdata is given, but data.backend is headrace",
                remedy="Give data.backend=tfdata, or no data.tfdata",
            )
        mixture = self.open_mixture()
        if validated and not any(source.val_split for source in mixture.active):
            raise UsageError(
                "no source of data.mixture has a val_split, so there is nothing to validate on",
                remedy="Give one (data.defaults.val_split='train[90%:]'), "
                "or train without (training.val_batches=0)",
            )


# -- training and logging --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a model is trained."""

    steps: int = 100_000  #: of the optimizer, in the whole run: where the cosine ends
    lr: float = 1e-4  #: highest learning rate
    min_lr: float = 1e-6  #: learning rate at the end
    warmup: int = 1000  #: steps of linear warm-up
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01  #: on tensors of two and more dimensions
    clip: float = 1.0  #: norm of the gradient
    seed: int = 42
    accumulate: int = 1  #: batches a step
    precision: str = "auto"  #: bf16-mixed on CUDA, 32-true on the CPU; or a name of Lightning
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1  #: of a machine; -1: all
    nodes: int = 1
    strategy: str = "auto"  #: ddp where there are several devices; or a name of Lightning
    compile: bool = False  #: the blocks of the model, by torch.compile
    ema: float | None = None  #: decay of an average of the weights, as 0.999
    val_every: int = 1000  #: steps between two validations; a shorter run has one at its end
    val_batches: int = 20  #: of a validation; 0: none
    sanity_val_batches: int = 0  #: validated before the first step, to see that it works
    pictures: bool = True  #: of a validation, in visualizations/
    checkpoint_every: int = 1000  #: steps between two writings of checkpoints/last.ckpt
    checkpoint_minutes: float = 30  #: the same in time, whichever comes first
    keep: int = 3  #: best checkpoints by val/loss
    resume: str | None = None  #: auto: the newest run of the experiment; a run; a checkpoint
    init_from: str | None = None  #: a checkpoint of which only the weights are taken
    profiler: Literal["none", "simple", "trace"] = "simple"  #: trace: also of torch, a few steps
    peak_flops: float | None = None  #: of a device, a second, for MFU; None: of known GPUs
    limits: bool = True  #: if the run waited for data, measure at its end what would be possible

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "val_every", "checkpoint_every", "nodes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give 1 or more")
        for name in ("warmup", "sanity_val_batches"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give 0 or more")
        if self.sanity_val_batches and not self.val_batches:
            raise UsageError(
                f"sanity_val_batches is {self.sanity_val_batches} and val_batches is 0",
                remedy="Give val_batches, or no sanity_val_batches",
            )
        if not 0 <= self.min_lr <= self.lr:
            problem = f"min_lr {self.min_lr} and lr {self.lr}"
            raise UsageError(problem, remedy="Keep 0 <= min_lr <= lr")
        if self.devices == 0 or self.devices < -1:
            raise UsageError(f"devices is {self.devices}", remedy="Give 1 or more, or -1 for all")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"ema is {self.ema}", remedy="Give a decay between 0 and 1, as 0.999")
        if self.resume and self.init_from:
            raise UsageError(
                "both resume and init_from are given",
                remedy="resume continues a run; init_from begins one with other weights",
            )


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Where figures go."""

    runs: str = "runs"  #: folder of the run folders
    every: int = 10  #: steps between two values; metrics.csv has the loss of every step
    print_every: int = 100  #: steps between two lines
    progress_bar: bool = False
    tensorboard: bool = True
    wandb: bool = False
    project: str = "headrace"  #: of Weights & Biases
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None  #: None: online if there are key and network
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("every", "print_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="Give 1 or more")


def data_defaults() -> dict[str, Any]:
    """The defaults of the group `data`, for Hydra; image size and seed are agreed later."""
    values: dict[str, Any] = plain(DataOptions())
    return {**values, "loader": {**values["loader"], "image_size": None, "seed": None}}


def agreed(values: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """A composed config in which the loader has the image size of the model and the run's seed.

    Where the config gives them, it is left as it is.
    """
    data, training = values.get("data"), values.get("training")
    loader = data.get("loader") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(loader, Mapping):
        return dict(values)
    seed = training.get("seed") if isinstance(training, Mapping) else None
    usable = isinstance(seed, int) and not isinstance(seed, bool)
    shared = {"image_size": image_size, "seed": seed if usable else TrainingOptions().seed}
    given = {key: value for key, value in loader.items() if key not in shared or value is not None}
    return {**values, "data": {**data, "loader": {**shared, **given}}}


def check_path(key: str, path: str | None) -> None:
    """Refuse a checkpoint or run that does not exist."""
    if path is not None and path != "auto" and not Path(path).exists():
        raise UsageError(
            f"{key} is {path!r}, and there is no such file",
            remedy="Checkpoints lie in checkpoints/ of a run's folder",
        )


# -- a run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What every recipe is told, as `headrace train` needs it; recipes narrow the types."""

    recipe: ClassVar[str]  #: its name
    experiment: str
    name: str  #: of the run's folder
    data: Any
    preset: str  #: what the model's values began with
    model: Any
    training: Any
    logging: Any

    @property
    def runs(self) -> str:
        """The folder of the run folders."""
        return str(self.logging.runs)

    @property
    def resume(self) -> str | None:
        """The run or checkpoint to continue."""
        return None if self.training.resume is None else str(self.training.resume)

    def config(self) -> dict[str, Any]:
        """All of it as plain values, as `--cfg` prints and config.yaml keeps them."""
        return {
            "experiment": self.experiment,
            "recipe": self.recipe,
            "name": self.name,
            "data": plain(self.data),
            "model": {"preset": self.preset, **plain(self.model)},
            "training": plain(self.training),
            "logging": plain(self.logging),
        }
