"""Does the model wait for its data? The recipe's step, its MFU, and what the loader could feed.

    python -m headrace.recipes.network.verdict DATA/train --preset base --batch 256 --peak 989e12

Batches come through the recipe's loader (`token_loader`), as they would in training, and are copied
to the device in the loop itself, which is the worst case. `examine_training` takes those of any
loader.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.recipes.network.config import ModelConfig, TrainingConfig
from headrace.recipes.network.flops import step_flops
from headrace.recipes.network.model import Batch
from headrace.recipes.network.optimizer import new_state
from headrace.recipes.network.rows import token_loader
from headrace.recipes.network.train import PRESETS, make_step
from headrace.tuning.examine import StepExamination, examine_step

__all__ = ["examine_training"]


def examine_training(
    batches: Iterable[Batch],
    config: ModelConfig,
    batch_size: int,
    *,
    peak_flops: float | None = None,
    training: TrainingConfig | None = None,
    **options: Any,
) -> StepExamination:
    """Train on the batches for some sixty steps and say what limits it; see `examine_step`."""
    training = training or TrainingConfig()
    state = new_state(config, training.seed)
    step = make_step(config, training)

    def once(batch: Batch) -> Any:
        nonlocal state
        state, value = step(state, batch)
        return state, value

    return examine_step(
        batches,
        once,
        flops_per_step=step_flops(config, batch_size).total,
        peak_flops=peak_flops,
        samples=batch_size,
        tokens=config.length,
        **options,
    )


def main() -> None:
    """Examine a preset over a folder's files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="of Parquet files, such as DATA/train")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny", help="the model")
    parser.add_argument("--batch", type=int, default=16, help="sequences of 1,024 tokens")
    parser.add_argument("--steps", type=int, default=30, help="that are measured")
    parser.add_argument("--peak", type=float, help="operations a second: H200 989e12, A100 312e12")
    parser.add_argument("--mfu", type=float, default=0.15, help="could this be the data's doing?")
    parser.add_argument("--run", type=Path, help="folder for the figures")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    with token_loader(options.folder, options.batch) as loader:
        found = examine_training(
            loader,
            PRESETS[options.preset](),
            options.batch,
            peak_flops=options.peak,
            steps=options.steps,
            run=options.run,
        )
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    print(found)
    if options.peak:
        print(f"  could {options.mfu:.0%} MFU be the data? {found.could_be_data(options.mfu)}")


if __name__ == "__main__":
    main()
