"""MaxText on network measurements: `python -m headrace.recipes.network.maxtext KEY=VALUE ...`.

MaxText has no setting for a pipeline that is not its own, so this launcher puts `token_pipeline` in
the place of its Grain iterators, for training and for evaluation, and then runs MaxText's trainer.
The arguments are MaxText's; Grain's workers and buffers are those of its config. For other
tables, copy this file and change the two functions that make the pipelines.

    --examine             a short run that says whether the data limit the step; saves nothing
    --peak-flops 312e12   of the device, a second: the examination gives the MFU, too
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jax
from absl import app

from headrace import examine_loop
from headrace.errors import UsageError
from headrace.recipes.network.rows import token_pipeline
from headrace.recipes.network.tokenize import shift_targets
from headrace.recipes.network.vocabulary import LENGTH

#: Where MaxText has what is needed here: releases from 0.2 on, and the older tree `src/MaxText`.
_PLACES = {
    "pipelines": (
        "maxtext.input_pipeline.input_pipeline_interface",
        "MaxText.input_pipeline.input_pipeline_interface",
    ),
    "loading": ("maxtext.input_pipeline.multihost_dataloading", "MaxText.multihost_dataloading"),
    "flops": ("maxtext.utils.maxtext_utils", "MaxText.maxtext_utils"),
    "train": ("maxtext.trainers.pre_train.train", "MaxText.train"),
}
_STEPS, _WARMUP, _ALONE_S = 30, 3, 3.0
#: Steps of an examination: in the loop, over one batch again and again, and the one that tells.
_ASKED = (_WARMUP + _STEPS) * 2 + 1
_EXAMINATION = [f"steps={_ASKED}", "enable_checkpointing=false", "eval_interval=-1"]


def train_pipeline(config: Any) -> Any:
    """Endless batches of this host, in an order that depends on the seed alone."""
    return token_pipeline(
        config.grain_train_files,
        config.global_batch_size_to_load // jax.process_count(),
        seed=config.data_shuffle_seed,
        rank=jax.process_index(),
        world_size=jax.process_count(),
        num_workers=config.grain_worker_count,
        per_worker_buffer_size=config.grain_per_worker_buffer_size,
    ).map(shift_targets)


def eval_pipeline(config: Any) -> Any:
    """One pass over the held-out files in their order, every window once.

    The last batch is filled up with padding, which MaxText's loss leaves out.
    """
    return token_pipeline(
        config.grain_eval_files,
        config.global_batch_size_to_load_eval // jax.process_count(),
        seed=config.data_shuffle_seed,
        rank=jax.process_index(),
        world_size=jax.process_count(),
        num_workers=config.grain_worker_count_eval,
        per_worker_buffer_size=config.grain_per_worker_buffer_size_eval,
        epochs=1,
        shuffle="none",
        remainder="pad",
    ).map(shift_targets)


class _Examined:
    """A pipeline whose batches are examined with the program that asks for them."""

    def __init__(self, pipeline: Any, flops: float, peak: float | None) -> None:
        self._pipeline, self._flops, self._peak = pipeline, flops, peak

    def __iter__(self) -> Iterator[Any]:
        return examine_loop(
            self._pipeline,
            flops_per_step=self._flops,
            peak_flops=self._peak,
            steps=_STEPS,
            warmup=_WARMUP,
            alone_s=_ALONE_S,
        )


def _found(what: str) -> Any:
    first, older = _PLACES[what]
    try:
        return import_module(first)
    except ModuleNotFoundError as error:
        if error.name is None or not first.startswith(error.name):
            raise
    try:
        return import_module(older)
    except ModuleNotFoundError as error:
        if error.name is None or not older.startswith(error.name):
            raise
    raise UsageError(
        "MaxText is not installed, or not in a version that this launcher knows",
        remedy="pip install maxtext, or PYTHONPATH=maxtext/src for a source tree; see the guide",
    )


def _check(config: Any) -> None:
    if config.max_target_length != LENGTH:
        raise UsageError(
            f"max_target_length is {config.max_target_length}, but sequences have {LENGTH} tokens",
            remedy=f"Give max_target_length={LENGTH}",
        )


def run(argv: list[str], *, examine: bool = False, peak_flops: float | None = None) -> None:
    """MaxText's trainer with these pipelines; `argv` as MaxText takes it."""
    pipelines, sharded = _found("pipelines"), _found("loading").MultiHostDataLoadIterator

    def make_train_iterator(config: Any, mesh: Any, _process_indices: Any) -> Any:
        _check(config)
        batches = train_pipeline(config)
        if examine:
            flops = _found("flops").calculate_tflops_training_per_device(config, log=False)[0]
            batches = _Examined(batches, flops * 1e12, peak_flops)
        return sharded(batches, mesh)

    def make_eval_iterator(config: Any, mesh: Any, _process_indices: Any) -> Any:
        return sharded(eval_pipeline(config), mesh)

    pipelines.make_grain_train_iterator = make_train_iterator
    pipelines.make_grain_eval_iterator = make_eval_iterator
    _found("train").main([*argv, *(_EXAMINATION if examine else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--examine", action="store_true")
    parser.add_argument("--peak-flops", type=float)
    ours, theirs = parser.parse_known_args()
    app.run(
        lambda argv: run(argv, examine=ours.examine, peak_flops=ours.peak_flops),
        argv=[sys.argv[0], *theirs],
    )


if __name__ == "__main__":  # Grain's workers import this file, and need no MaxText for it
    main()
