"""Latent action quantisation: discrete actions from pairs of frames, without action labels.

A recipe to read from top to bottom: `config`; `model`, built of `blocks`, `nsvq` and `teachers`;
`step` (optimizer, bad losses, FLOPs); `task` (a Lightning module) with its callbacks `validation`
and `ema`; `options` and `program` (what `headrace train` runs).

>>> from headrace.recipes.laq import Laq, LaqConfig
>>> model = Laq(LaqConfig.tiny())
>>> model(frames).loss.backward()                            # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.recipes.laq.config import LaqConfig
    from headrace.recipes.laq.ema import Ema
    from headrace.recipes.laq.model import Laq, LaqOutput, trainable_parameters
    from headrace.recipes.laq.nsvq import Replacement, replacement_due
    from headrace.recipes.laq.pictures import progress_strip
    from headrace.recipes.laq.step import (
        LossWatch,
        NonFiniteLossError,
        StepFlops,
        learning_rate,
        make_optimizer,
        make_schedule,
        provenance,
        step_flops,
    )
    from headrace.recipes.laq.task import LaqTask
    from headrace.recipes.laq.teachers import Teachers, load_teachers
    from headrace.recipes.laq.validation import ValidationPictures
    from headrace.recipes.training.options import TrainingOptions

__all__ = [
    "Ema",
    "Laq",
    "LaqConfig",
    "LaqOutput",
    "LaqTask",
    "LossWatch",
    "NonFiniteLossError",
    "Replacement",
    "StepFlops",
    "Teachers",
    "TrainingOptions",
    "ValidationPictures",
    "learning_rate",
    "load_teachers",
    "make_optimizer",
    "make_schedule",
    "progress_strip",
    "provenance",
    "replacement_due",
    "step_flops",
    "trainable_parameters",
]

#: Where the names are: imported on first use, because configs are checked without torch.
_HOMES = {
    "laq.config": ("LaqConfig",),
    "laq.ema": ("Ema",),
    "laq.model": ("Laq", "LaqOutput", "trainable_parameters"),
    "laq.nsvq": ("Replacement", "replacement_due"),
    "laq.pictures": ("progress_strip",),
    "laq.step": (
        "LossWatch",
        "NonFiniteLossError",
        "StepFlops",
        "learning_rate",
        "make_optimizer",
        "make_schedule",
        "provenance",
        "step_flops",
    ),
    "laq.task": ("LaqTask",),
    "laq.teachers": ("Teachers", "load_teachers"),
    "laq.validation": ("ValidationPictures",),
    "training.options": ("TrainingOptions",),
}


def __getattr__(name: str) -> Any:
    module = next((home for home, names in _HOMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f"headrace.recipes.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "lightning"):
            raise
        raise UsageError(
            f"headrace.recipes.laq.{name} needs {error.name}, which is not installed",
            remedy="pip install 'headrace[train]'",
        ) from error
    globals()[name] = found
    return found
