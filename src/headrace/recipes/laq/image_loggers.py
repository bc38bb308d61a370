"""Pictures for those loggers of a trainer that take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.outputs.lightning.framework import Trainer
from headrace.recipes.laq.canvas import Image

__all__ = ["log_images"]


def log_images(trainer: Trainer, images: Mapping[str, Image], step: int) -> None:
    """Send pictures to Weights & Biases and TensorBoard; others, as CSV, get none.

    A logger is known by its methods, so that neither package need be installed.
    """
    for logger in trainer.loggers:
        if callable(log_image := getattr(logger, "log_image", None)):
            for name, image in images.items():
                log_image(key=name, images=[image], step=step)
            continue
        writer: Any = getattr(logger, "experiment", None)
        if callable(add_image := getattr(writer, "add_image", None)):
            for name, image in images.items():
                add_image(name, image, global_step=step, dataformats="HWC")
