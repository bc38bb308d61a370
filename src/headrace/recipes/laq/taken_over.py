"""What a run takes over from a checkpoint, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

from headrace.errors import UsageError
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.task import LaqTask
from headrace.recipes.training.checkpoint_file import CheckpointFile, check_same

__all__ = ["check_resumed", "take_weights"]

#: Keys of the model that its weights do not depend on.
_FREE = {"dino_weights", "flow_weights", "teachers_required", "code_std"}
_FREE |= {"replacement", "replace_below", "replace_noise"}
#: Keys that a checkpoint's optimizer brings back: new values would be ignored.
_KEPT = ("lr", "betas", "weight_decay")


def check_resumed(source: CheckpointFile, task: LaqTask) -> None:
    """Refuse a checkpoint of another model, or of an optimizer with other values."""
    _check_model(source, task)
    check_same(
        source.path,
        source.config.get("training", {}),
        asdict(task.training_config),
        group="training",
        keys=_KEPT,
        remedy="A resumed optimizer keeps its values: give them, or begin a run with these "
        f"weights (training.init_from={source.path})",
    )


def take_weights(task: LaqTask, path: str) -> None:
    """Weights, and nothing else, of a run of this recipe."""
    source = CheckpointFile.read(Path(path), "training.init_from")
    _check_model(source, task)
    try:
        task.load_state_dict(dict(source.weights))
    except RuntimeError as error:
        raise UsageError(
            f"training.init_from: the weights of {path} do not fit: {' '.join(str(error).split())}",
            remedy="Give a checkpoint of the same model",
        ) from None


def _check_model(source: CheckpointFile, task: LaqTask) -> None:
    check_same(
        source.path,
        source.config.get("model", {}),
        asdict(task.model.config),
        group="model",
        keys=[each.name for each in fields(LaqConfig) if each.name not in _FREE],
        remedy="Give the values it was trained with",
    )
