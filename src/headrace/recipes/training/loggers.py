"""Where figures go: metrics.csv always, TensorBoard and Weights & Biases where they can be used.

A missing package, key or network is a message, never the end of a run.
"""

from __future__ import annotations

import csv
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from headrace.recipes.training.run_folder import read_rows, write_rows

_ADDRESS = "https://api.wandb.ai"
_SECONDS = 3.0  # to reach it; not measured
_WRITE_SECONDS = 2.0  # lost when a run is killed, but nothing before a checkpoint


def logged_step(trainer: Trainer) -> int:
    """The step under which Lightning logs what is logged now."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


class MetricsFile(Logger):
    """The logger behind metrics.csv.

    Lightning's own logger deletes the file of the run that is resumed. This one keeps the rows
    before `first_step`, where the checkpoint was, and replaces what came after.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, write: bool = True) -> None:
        super().__init__()
        self._folder, self._file, self._write = folder, folder / "metrics.csv", write
        self._first = first_step
        self._rows: dict[int, dict[str, Any]] = {}
        self._columns: list[str] = []  # empty: nothing was written yet
        self._written = monotonic()

    @property
    def name(self) -> str:
        """Required by Lightning."""
        return "metrics"

    @property
    def version(self) -> str:
        """Required by Lightning."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run's folder, which makes it the trainer's log folder."""
        return str(self._folder)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Nothing: they are in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add values of a step."""
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if not self._write or not values or step is None:
            return
        self._rows.setdefault(step, {"step": step}).update(values)
        if monotonic() - self._written > _WRITE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what was added; rows are appended as long as no new column appears."""
        self._written = monotonic()
        if not self._write or not self._rows:
            return
        rows = [self._rows[step] for step in sorted(self._rows)]
        self._rows = {}
        names = dict.fromkeys(name for row in rows for name in row)
        if self._columns and all(name in self._columns for name in names):
            with self._file.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(rows)
            return
        kept = read_rows(self._file)
        if not self._columns:  # the rows of the run that is resumed
            kept = [row for row in kept if row["step"] < self._first]
        self._columns = write_rows(self._file, [*kept, *rows])

    def finalize(self, status: str) -> None:
        """Write the rest, the values of one step in one row."""
        self.save()
        if self._columns:
            self._columns = write_rows(self._file, read_rows(self._file))


class LossOfEveryStep(Callback):
    """Writes train/loss of every step to metrics.csv, reading the device once an interval.

    A trainer that logs at every step would wait for the device at every step.
    """

    def __init__(self, metrics: MetricsFile, every_n_steps: int) -> None:
        self._metrics, self._every = metrics, max(1, every_n_steps)
        self._steps: list[int] = []
        self._losses: list[torch.Tensor] = []
        self.latest: float | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Keep the loss on the device."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, torch.Tensor):
            return
        step = logged_step(trainer)
        if len(self._losses) >= self._every and step != self._steps[-1]:
            self._flush()
        self._steps.append(step)
        self._losses.append(loss.detach())

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write: a run resumed from this checkpoint does not repeat these steps."""
        self._flush()
        self._metrics.save()

    def on_train_end(self, *_: Any) -> None:
        """Write the rest."""
        self._flush()

    def on_exception(self, *_: Any) -> None:
        """Write the rest, if the device still answers."""
        try:
            self._flush()
        except RuntimeError:
            self._losses = []

    def _flush(self) -> None:
        """Wait for the device. A step of several batches gets their mean."""
        if not self._losses:
            return
        values = torch.stack([loss.float() for loss in self._losses]).tolist()
        of_step: dict[int, list[float]] = {}
        for step, value in zip(self._steps, values, strict=True):
            of_step.setdefault(step, []).append(value)
        self._steps, self._losses = [], []
        for step, several in of_step.items():
            self.latest = sum(several) / len(several)
            self._metrics.log_metrics({"train/loss": self.latest}, step)


def tensorboard_logger(folder: Path, tell: Callable[[str], None]) -> Logger | None:
    """Events in `tensorboard/` of the run; None, with a message, where it is not installed."""
    if find_spec("tensorboard") is None and find_spec("tensorboardX") is None:
        tell("TensorBoard is not installed (pip install tensorboard): metrics.csv has the figures")
        return None
    # Otherwise TensorBoard imports TensorFlow if that is installed: ten seconds, and 500 MB.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(str(folder), name="tensorboard", version="")


@dataclass(frozen=True, slots=True)
class WandbChoice:
    """How Weights & Biases is to be used."""

    project: str
    name: str
    entity: str | None = None
    mode: str | None = None  #: online, offline; None: online where there are a key and a network
    tags: Sequence[str] = ()


def wandb_mode(
    requested: str | None,
    environment: Mapping[str, str],
    reachable: Callable[[str], bool],
    address: str = _ADDRESS,
) -> tuple[str, str]:
    """online, offline or disabled, and why; the network is tried only if it matters.

    >>> wandb_mode(None, {"HOME": "/nowhere"}, lambda host: True)
    ('offline', 'no API key: `wandb login`, or WANDB_API_KEY')
    """
    if requested is not None:
        return requested, "as requested"
    if given := environment.get("WANDB_MODE"):
        return ("disabled" if given in ("disabled", "dryrun") else given), "WANDB_MODE"
    host = environment.get("WANDB_BASE_URL", address).split("://")[-1].split("/")[0]
    if not environment.get("WANDB_API_KEY") and not _has_login(environment, host):
        return "offline", "no API key: `wandb login`, or WANDB_API_KEY"
    if not reachable(host):
        return "offline", f"{host} cannot be reached"
    return "online", "there are a key and a network"


def wandb_logger(
    choice: WandbChoice, folder: Path, config: Mapping[str, Any], tell: Callable[[str], None]
) -> Logger | None:
    """A run of Weights & Biases, offline if need be, to be synced later; None: without it."""
    if find_spec("wandb") is None:
        tell("Weights & Biases is not installed (pip install wandb): continuing without it")
        return None
    import wandb  # type: ignore[import-not-found,unused-ignore]

    address = str(getattr(wandb.Settings(), "base_url", _ADDRESS))
    mode, why = wandb_mode(choice.mode, os.environ, _reachable, address)
    for tried in dict.fromkeys((mode, "offline")):
        # A resumed run keeps its name; one that failed to start still holds it.
        name = folder.name if tried == mode else None
        try:
            logger = _started(choice, folder, config, tried, name)
        except Exception as error:  # a service that does not start must not end a training run
            words = " ".join(str(error).split())
            tell(f"Weights & Biases does not start {tried}: {words}")
            why = f"it does not start {tried}"
            continue
        if tried == "offline":
            tell(f"Weights & Biases offline ({why})")
            tell(f"later: wandb sync {folder / 'wandb'}/offline-*")
        return logger
    tell("continuing without Weights & Biases")
    return None


def _started(
    choice: WandbChoice, folder: Path, config: Mapping[str, Any], mode: str, name: str | None
) -> Logger:
    import wandb  # type: ignore[import-not-found,unused-ignore]
    from lightning.pytorch.loggers import WandbLogger

    run = wandb.init(
        project=choice.project,
        entity=choice.entity,
        name=choice.name,
        id=name,
        resume="allow" if mode == "online" else None,
        dir=str(folder),
        mode=mode,
        tags=list(choice.tags),
        config=dict(config),
        settings=wandb.Settings(init_timeout=30, console="off", silent=True),
    )
    return WandbLogger(experiment=run, save_dir=str(folder))


def _has_login(environment: Mapping[str, str], host: str) -> bool:
    home = environment.get("HOME")
    if not home:
        return False
    with suppress(OSError, NetrcParseError):
        return netrc(Path(home) / ".netrc").authenticators(host) is not None
    return False


def _reachable(host: str) -> bool:
    name, _, port = host.partition(":")
    try:
        socket.create_connection((name, int(port or 443)), timeout=_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
