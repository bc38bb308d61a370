"""Where figures go: metrics.csv always, TensorBoard and Weights & Biases where they can be had.

A missing package, key or network is a message, never the end of a run.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning.pytorch.loggers import Logger

__all__ = ["WandbChoice", "tensorboard_logger", "wandb_logger", "wandb_mode"]

_ADDRESS = "https://api.wandb.ai"
_SECONDS = 3.0  # to reach it; not measured


def tensorboard_logger(folder: Path, tell: Callable[[str], None]) -> Logger | None:
    """Events in `tensorboard/` of the run; None, with a message, where it is not installed."""
    if find_spec("tensorboard") is None and find_spec("tensorboardX") is None:
        tell("TensorBoard is not installed (pip install tensorboard): metrics.csv has the figures")
        return None
    # Else TensorBoard imports TensorFlow where that is installed: ten seconds, and 500 MB.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(str(folder), name="tensorboard", version="")


@dataclass(frozen=True, slots=True)
class WandbChoice:
    """What is asked of Weights & Biases."""

    project: str
    name: str
    entity: str | None = None
    mode: str | None = None  #: online, offline; None: online where there are a key and a network
    tags: Sequence[str] = ()


def wandb_mode(
    asked: str | None,
    environment: Mapping[str, str],
    reachable: Callable[[str], bool],
    address: str = _ADDRESS,
) -> tuple[str, str]:
    """online, offline or disabled, and why; the network is tried only if it matters.

    >>> wandb_mode(None, {"HOME": "/nowhere"}, lambda host: True)
    ('offline', 'no API key: `wandb login`, or WANDB_API_KEY')
    """
    if asked is not None:
        return asked, "as asked"
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
    """A run of Weights & Biases that can be synced later where it cannot be now; None: none."""
    if find_spec("wandb") is None:
        tell("Weights & Biases is not installed (pip install wandb): going on without it")
        return None
    import wandb  # type: ignore[import-not-found,unused-ignore]

    address = str(getattr(wandb.Settings(), "base_url", _ADDRESS))
    mode, why = wandb_mode(choice.mode, os.environ, _reachable, address)
    for tried in dict.fromkeys((mode, "offline")):
        # A resumed run goes on under its name; one that failed to start holds it.
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
    tell("going on without Weights & Biases")
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
