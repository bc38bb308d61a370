"""Lightning, under the name it is installed by: `lightning`, or `pytorch_lightning` alone.

The two are the same code twice, and their classes do not mix: whoever has both and trains with
`pytorch_lightning` imports that before this.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.errors import UsageError

__all__ = ["Callback", "LightningDataModule", "LightningModule", "Trainer"]

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find() -> ModuleType:
    """The one that is imported already, else the first that is installed."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", *_NAMES):
                raise
    raise UsageError(
        "training with Lightning (headrace.outputs.lightning) needs lightning, "
        "which is not installed",
        remedy="pip install 'headrace[train]'",
    )


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
else:
    _found = _find()
    Callback = _found.Callback
    LightningDataModule = _found.LightningDataModule
    LightningModule = _found.LightningModule
    Trainer = _found.Trainer
