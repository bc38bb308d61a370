"""Latent action quantisation: discrete actions from pairs of frames, without action labels.

A recipe to read from top to bottom: `config`, `model` (and the parts it names), `optimizer`,
`task` (a Lightning module) with its callbacks `validation` and `ema`, `options` and `program` (what
`headrace train` runs).

>>> from headrace.recipes.laq import Laq, LaqConfig
>>> model = Laq(LaqConfig.tiny())
>>> model(frames).loss.backward()                            # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.recipes.laq.config import LaqConfig, TrainingConfig
    from headrace.recipes.laq.flops import StepFlops, step_flops
    from headrace.recipes.laq.loss_watch import LossWatch, NonFiniteLossError, provenance
    from headrace.recipes.laq.model import Laq, LaqOutput, trainable_parameters
    from headrace.recipes.laq.nsvq import Replacement, replacement_due
    from headrace.recipes.laq.optimizer import learning_rate, make_optimizer, make_schedule
    from headrace.recipes.laq.pictures import progress_strip
    from headrace.recipes.laq.teachers import Teachers, load_teachers

__all__ = [
    "Laq",
    "LaqConfig",
    "LaqOutput",
    "LossWatch",
    "NonFiniteLossError",
    "Replacement",
    "StepFlops",
    "Teachers",
    "TrainingConfig",
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

#: Where the names are: looked up when asked for, because configs are checked without torch.
_PLACES = {
    "config": ("LaqConfig", "TrainingConfig"),
    "flops": ("StepFlops", "step_flops"),
    "loss_watch": ("LossWatch", "NonFiniteLossError", "provenance"),
    "model": ("Laq", "LaqOutput", "trainable_parameters"),
    "nsvq": ("Replacement", "replacement_due"),
    "optimizer": ("learning_rate", "make_optimizer", "make_schedule"),
    "pictures": ("progress_strip",),
    "teachers": ("Teachers", "load_teachers"),
}


def __getattr__(name: str) -> Any:
    module = next((place for place, names in _PLACES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "the latent-action recipe (headrace.recipes.laq) needs torch, which is not installed",
            remedy="pip install 'headrace[train]'",
        ) from error
    globals()[name] = found
    return found
