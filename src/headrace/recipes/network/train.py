"""Training, from top to bottom.

python -m headrace.recipes.network.train DATA/train --preset tiny --batch 16 --steps 100
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from headrace.errors import UsageError
from headrace.measure.machine import finish_queued_work
from headrace.outputs.jax import device_batches
from headrace.recipes.network.config import ModelConfig, TrainingConfig
from headrace.recipes.network.flops import step_flops
from headrace.recipes.network.framework import jax
from headrace.recipes.network.model import Batch, count_parameters, loss
from headrace.recipes.network.optimizer import TrainState, new_state, update
from headrace.recipes.network.rows import token_loader

__all__ = ["NEEDED", "PRESETS", "Trained", "make_step", "train"]

#: Fields of a batch that a step uses; the others need not travel to the device.
NEEDED = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position")
PRESETS = {"base": ModelConfig.base, "tiny": ModelConfig.tiny}


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it."""

    state: TrainState
    losses: tuple[float, ...]  #: of every `report_every` steps, and of the last
    seconds: float  #: without the first step, which compiles


@lru_cache(maxsize=8)
def make_step(
    config: ModelConfig, training: TrainingConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, Any]]:
    """A compiled step: the state before and a batch to the state after and the loss.

    The state that is given is used up, so that there is memory for one alone.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        value, gradient = jax.value_and_grad(loss)(state.parameters, batch, config)
        return update(state, gradient, training), value

    compiled = jax.jit(step, donate_argnums=0)
    return lambda state, batch: compiled(state, {name: batch[name] for name in NEEDED})


def train(
    batches: Iterable[Batch],
    config: ModelConfig,
    training: TrainingConfig,
    *,
    steps: int | None = None,
    report_every: int = 10,
    report: Callable[[int, float], None] = lambda _step, _loss: None,
) -> Trained:
    """Train on batches, of whatever loader, until they or the steps end."""
    steps = training.steps if steps is None else steps
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise UsageError("there was no batch to train on", remedy="Look at the loader")
    state = new_state(config, training.seed)
    step = make_step(config, training)
    losses: list[float] = []
    started = 0.0
    for number, batch in zip(range(steps), chain([first], waiting), strict=False):
        state, value = step(state, batch)
        if number == 0:
            finish_queued_work(value)
            started = time.perf_counter()
        if number % report_every == 0 or number == steps - 1:
            losses.append(float(value))  # waits for the device, so not at every step
            report(number, losses[-1])
    finish_queued_work(state.step)
    return Trained(state, tuple(losses), time.perf_counter() - started)


def main() -> None:
    """Train on a folder's files and print a JSON line every ten steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="of Parquet files, such as DATA/train")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny", help="the model")
    parser.add_argument("--batch", type=int, default=16, help="sequences of 1,024 tokens")
    parser.add_argument("--steps", type=int, default=100, help="of training")
    parser.add_argument("--seed", type=int, default=0, help="of order, chance and weights")
    options = parser.parse_args()
    config = PRESETS[options.preset]()
    warmup = min(500, options.steps // 10)
    training = TrainingConfig(steps=options.steps, warmup=warmup, seed=options.seed)
    started = time.perf_counter()

    def report(step: int, value: float) -> None:
        passed = time.perf_counter() - started
        line = {"step": step, "loss": round(value, 4), "seconds": round(passed, 1)}
        print(json.dumps(line), flush=True)

    print(json.dumps({"model": asdict(config), "training": asdict(training)}))
    with token_loader(options.folder, options.batch, seed=options.seed) as loader:
        batches = device_batches(loader, fields=NEEDED)
        done = train(batches, config, training, report=report)
    each = done.seconds / max(1, options.steps - 1)
    summary = {
        "parameters": count_parameters(done.state.parameters),
        "step_ms": round(1000 * each, 1),
        "tokens_per_s": round(options.batch * config.length / each) if each else None,
        "tflops": round(step_flops(config, options.batch).total / each / 1e12, 3) if each else None,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
