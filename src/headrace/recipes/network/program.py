"""The training program on network measurements: `headrace train experiment=network_...` runs it.

`train_on` is the loop alone, over the batches of any loader; `examine_training` says whether such a
loop waits for its data.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import jax as _jax
import numpy as np

from headrace import examine_step
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure import RunWriter, StepClock, read_run, run_verdict
from headrace.outputs.jax import device_batches
from headrace.recipes.network.config import ModelConfig, TrainingConfig, step_flops
from headrace.recipes.network.model import (
    NEEDED,
    Batch,
    TrainState,
    count_parameters,
    make_step,
    new_state,
)
from headrace.recipes.network.options import NetworkOptions
from headrace.recipes.network.rows import token_loader
from headrace.recipes.training.run_folder import (
    Ended,
    RunFolder,
    read_rows,
    tee_output,
    write_result,
    write_rows,
)

jax: Any = _jax  # much of it has no types


def train(options: NetworkOptions, run: RunFolder) -> Ended:
    """Train; whatever happens once the folder exists ends in its result.json."""
    training = options.training
    source = None if run.resume is None else _read_checkpoint(run.resume.checkpoint, options)
    if source is not None and run.continued and int(source.state.step) >= training.steps:
        earlier = run.result()
        if earlier.get("status") == "complete":
            print(f"{run.continued} has its {training.steps:,} steps: nothing is left to train")
            return Ended("complete", run.continued, earlier)
    root = options.data.root
    if root is not None and not Path(root).exists():
        raise UsageError(
            f"data.root is {root!r}, and there is no such folder",
            remedy="Give the folder of a split, such as data.root=DATA/train",
        )
    run.begin()
    with tee_output(run.log):
        return _train(options, run, source)


def _train(options: NetworkOptions, run: RunFolder, source: _Checkpoint | None) -> Ended:
    config, training = options.model, options.training

    # Data. Without a root it is generated.
    folder = options.data.root or str(options.data.synth.make())
    state = new_state(config, training) if source is None else source.state
    begins = int(state.step)
    parameters = count_parameters(state.parameters)
    print(f"run: {run.path}")
    print(f"data: {folder}; batch {options.data.loader.batch_size} of {config.length} tokens")
    print(
        f"model: {options.preset}, {parameters / 1e6:.1f} M parameters, "
        f"on {jax.default_backend()}; {training.steps:,} steps"
    )
    if source is not None:
        print(f"resuming after step {begins:,} of {source.path}")

    # Training. The first Ctrl-C ends it after a step, with a checkpoint; the second at once.
    metrics = [row for row in read_rows(run.path / "metrics.csv") if row["step"] <= begins]
    value: float | None = None
    status, cause, examination = "complete", None, None
    with token_loader(folder, options.data.loader) as loader, _stop_signals() as stopped:
        if source is not None:
            loader.load_state_dict(source.loader)
        position = loader.state_dict()
        clock = StepClock(warmup=min(8, (training.steps - begins) // 4))
        batch_size = options.data.loader.batch_size
        step, done = make_step(config, training), begins
        batches = device_batches(loader, fields=NEEDED)

        def checkpoint() -> None:
            draws = position["draws"] + (done - begins) * batch_size
            _write_checkpoint(run.last, state, {**position, "draws": draws}, config)

        with RunWriter(run.path, batches=True, resume=begins) as records:
            clock.begin()
            try:
                while done < training.steps and not stopped:
                    asked = perf_counter()
                    batch = next(batches)
                    clock.waited(perf_counter() - asked)
                    state, loss = step(state, batch)
                    done += 1
                    jax.block_until_ready(loss)
                    records.batch(clock.end(batch_size), samples=batch_size, counts={})
                    with clock.paused():
                        if done % options.logging.print_every == 0 or done == training.steps:
                            value = float(loss)
                            metrics.append({"step": done, "train/loss": value})
                            write_rows(run.path / "metrics.csv", metrics)
                            print(f"[Step {done}] loss={value:.4f}", flush=True)
                        if done % training.checkpoint_every == 0:
                            checkpoint()
                if stopped:
                    status, cause = "interrupted", f"stopped at step {done:,}"
                checkpoint()
            except KeyboardInterrupt:
                status, cause = "interrupted", f"stopped at step {done:,}"
            except Exception as error:
                status, cause = "failed", f"{type(error).__name__}: {error}"
        if training.examine and status == "complete":
            examination = examine_training(
                loader,
                config,
                batch_size,
                peak_flops=training.peak_flops,
                training=training,
                steps=training.examine,
            )

    # Result.
    mean = clock.seconds / clock.steps if clock.steps else None
    flops = step_flops(config, options.data.loader.batch_size)
    mfu = (
        flops.utilisation(mean, training.peak_flops)
        if mean is not None and training.peak_flops
        else None
    )
    result = write_result(
        run,
        status,
        cause,
        asked={},
        world=1,
        accumulate=1,
        own={
            "experiment": options.experiment,
            "steps": done,
            "resumed_from": None if source is None else str(source.path),
            "parameters": parameters,
            "train_loss": value,
            "tokens_per_s": batch_size * config.length / mean if mean else None,
            "flops_per_step": flops.total,
            "mfu": mfu,
            "last_checkpoint": str(run.last) if run.last.is_file() else None,
            "examination": None if examination is None else examination.to_dict(),
        },
    )
    print(run_verdict(read_run(run.path)))
    if examination is not None:
        print(examination)
        if training.peak_flops:
            print(f"  could 15% MFU be the data? {examination.could_be_data(0.15)}")
    words = {"complete": "trained", "interrupted": "interrupted after", "failed": "failed after"}
    line = [f"{words[status]} {done:,} steps"]
    line += [f"train/loss {value:.4f}"] if value is not None else []
    line += [f"{result['tokens_per_s']:,.0f} tokens/s"] if result["tokens_per_s"] else []
    line += [f"MFU {mfu:.1%}"] if mfu is not None else []
    print(f"{', '.join(line)}\narchived in {run.path}")
    return Ended(status, run.path, result, cause)


# -- the loop alone --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of `train_on`."""

    state: TrainState
    losses: tuple[float, ...]  #: of every `report_every` steps, and of the last
    seconds: float  #: without the first step, which compiles


def train_on(
    batches: Iterable[Batch],
    config: ModelConfig,
    training: TrainingConfig,
    *,
    steps: int | None = None,
    report_every: int = 10,
    report: Callable[[int, float], None] = lambda _step, _loss: None,
) -> Trained:
    """Train on batches of any loader until they or the steps end."""
    steps = training.steps if steps is None else steps
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise UsageError("there was no batch to train on", remedy="Check the loader")
    state = new_state(config, training)
    step = make_step(config, training)
    losses: list[float] = []
    started = 0.0
    for number, batch in zip(range(steps), chain([first], waiting), strict=False):
        state, value = step(state, batch)
        if number == 0:
            jax.block_until_ready(value)
            started = perf_counter()
        if number % report_every == 0 or number == steps - 1:
            losses.append(float(value))  # waits for the device, so not at every step
            report(number, losses[-1])
    jax.block_until_ready(state.step)
    return Trained(state, tuple(losses), perf_counter() - started)


def examine_training(
    batches: Iterable[Batch],
    config: ModelConfig,
    batch_size: int,
    *,
    peak_flops: float | None = None,
    training: TrainingConfig | None = None,
    **options: Any,
) -> Any:
    """Train on the batches for some sixty steps and say what limits it; see `examine_step`.

    Batches are copied to the device in the loop itself, which is the worst case.
    """
    training = training or TrainingConfig()
    state = new_state(config, training)
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


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that asked for an end so far; a second one has its default effect."""
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- checkpoints -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    path: Path
    state: TrainState
    loader: dict[str, Any]


def _write_checkpoint(
    path: Path, state: TrainState, loader: dict[str, Any], config: ModelConfig
) -> None:
    """All arrays of the state in the order of JAX's tree, and where the loader stands."""
    about = json.dumps({"loader": loader, "model": repr(config)})
    arrays = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(state))}
    data = io.BytesIO()
    np.savez(data, about=np.array(about), **arrays)  # type: ignore[arg-type]
    atomic_write(path, data.getvalue())


def _read_checkpoint(path: Path, options: NetworkOptions) -> _Checkpoint:
    try:
        with np.load(path) as kept:
            about = json.loads(str(kept["about"]))
            leaves = [kept[f"leaf{n}"] for n in range(len(kept.files) - 1)]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"training.resume: {path} is not a checkpoint of this recipe ({error})",
            remedy="Give the run's folder, or checkpoints/last.ckpt in it",
        ) from None
    if about["model"] != repr(options.model):
        raise UsageError(
            f"training.resume: the model of {path} is another one: {about['model']}",
            remedy="Resume with the config of that run: config.yaml in its folder",
        )
    structure = jax.tree.structure(new_state(options.model, options.training))
    return _Checkpoint(path, jax.tree.unflatten(structure, leaves), about["loader"])
