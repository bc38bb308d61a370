"""Latent action quantisation: discrete actions from pairs of frames, without action labels.

A recipe to read from top to bottom: `config`, `model` (and the parts it names), `optimizer`,
`task`. Only `task` and its callbacks, `validation` and `ema`, need lightning.

>>> from headrace.recipes.laq import Laq, LaqConfig
>>> model = Laq(LaqConfig.tiny())
>>> model(frames).loss.backward()                            # doctest: +SKIP
"""

from headrace.errors import UsageError

try:
    import torch as _torch  # noqa: F401  (asked for here, so that its absence is explained once)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise UsageError(
        "the latent-action recipe (headrace.recipes.laq) needs torch, which is not installed",
        remedy="pip install 'headrace[train]'",
    ) from error

from headrace.recipes.laq.config import LaqConfig, TrainingConfig
from headrace.recipes.laq.flops import StepFlops, step_flops
from headrace.recipes.laq.model import Laq, LaqOutput, trainable_parameters
from headrace.recipes.laq.nsvq import Replacement, replacement_due
from headrace.recipes.laq.optimizer import learning_rate, make_optimizer, make_schedule
from headrace.recipes.laq.progress import progress_strip
from headrace.recipes.laq.provenance import LossWatch, NonFiniteLossError, provenance
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
