"""LAQ on a GPU, fed by headrace: against the same steps over a batch that is there already.

    python benchmarks/laq_gpu.py DATA --preset full --batch 128 256 --out laq_gpu.json
    python benchmarks/laq_gpu.py DATA --preset small --batch 256 --decode cpu gpu auto

DATA holds the 29 datasets (`headrace synth DATA`). For each batch size and way of decoding the
model trains on the mixture and on one batch again and again (the ceiling), in turns; what the first
takes longer is the data's part of the step. Then it continues with a validation every 50 steps, and
every wait and the memory are looked at. The limits of decoding are measured in the same call. The
DINO teacher has random weights, which cost the same as trained ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from headrace.measure.limit import decode_limit
from headrace.measure.machine import tree_memory
from headrace.outputs.torch import TorchLoader
from headrace.recipes.laq import Laq, LaqConfig, TrainingOptions, make_optimizer, step_flops
from headrace.recipes.laq.model import trainable_parameters
from headrace.recipes.laq.teachers import DinoV3, Teachers

PRESETS = {"full": lambda: LaqConfig(flow_decoder=False), "small": LaqConfig.small}
PEAK = 989e12  #: dense bfloat16 of an H200
VALIDATE_EVERY, VALIDATION_BATCHES = 50, 4


@dataclass(frozen=True, slots=True)
class Validated:
    """Training that stops for validation again and again."""

    first_batch_s: list[float]  #: of each validation
    next_batch_s: list[float]  #: of training, after each validation
    longest_wait_s: float  #: for any batch, of training and validation
    memory_mb: list[float]  #: anonymous, of all processes, after each validation


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size and way of decoding."""

    preset: str
    parameters: int
    batch_size: int
    decode: str
    threads: int  #: of the loader
    compile: bool
    samples_per_s: float  #: trained on the mixture, median of the rounds
    replayed_samples_per_s: float  #: the ceiling
    data_share: float  #: of the step: how much shorter it is over a batch that is there
    rounds: list[list[float]]  #: samples/s of each round, mixture and replayed
    host_waited: float  #: share of the time that Python waited for batches
    mfu: float
    gpu_busy_percent: float | None
    loader_samples_per_s: float  #: without a model
    decode_limit_samples_per_s: float  #: of the CPUs, in a tight loop
    first_batch_s: float
    validated: Validated
    gpu_memory_gb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--decode", choices=("cpu", "gpu", "auto"), nargs="+", default=["cpu"])
    parser.add_argument("--steps", type=int, default=60, help="of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--validations", type=int, default=3, help="one every 50 steps")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, help="of the loader (default: a CPU each)")
    parser.add_argument("--out", type=Path, default=Path("laq_gpu.json"))
    args = parser.parse_args()
    rows = []
    for batch in args.batch:
        for decode in args.decode:
            rows.append(asdict(measure(args, batch, decode)))
            print(json.dumps(rows[-1]), flush=True)
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(args: argparse.Namespace, batch_size: int, decode: Any) -> Row:
    """One row: warm up, rounds of both, validation in between, and the limits."""
    torch.manual_seed(0)
    config = PRESETS[args.preset]()
    dino = DinoV3() if config.features == "dino" else None
    model = Laq(config, Teachers(dino)).to("cuda")
    if args.compile:
        model.compile_blocks()
    optimizer = make_optimizer(model, TrainingOptions())

    def step(frames: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(frames).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    splits = ["defaults.split=train[:90%]", "defaults.val_split=train[90%:]"]
    mixture = hr.Mixture.load("oxe29", [f"root={args.data}", *splits])
    begun = time.perf_counter()
    with TorchLoader(
        mixture,
        batch_size=batch_size,
        image_size=config.image_size,
        device="cuda",
        decode=decode,
        metadata="full",
        workers=args.threads,
    ) as loader:
        batches = iter(loader)
        kept: Any = next(batches)["frames"].clone()
        first = time.perf_counter() - begun
        for _ in range(12):
            step(kept)
            step(next(batches)["frames"])
        for _ in range(150 if decode == "auto" else 0):  # it tries both meanwhile
            step(next(batches)["frames"])
        fed, replayed, waited = [], [], []
        busy = _GpuBusy()
        for _ in range(args.rounds):
            before = loader.waited_s
            seconds = _timed(step, (next(batches)["frames"] for _ in range(args.steps)))
            fed.append(batch_size * args.steps / seconds)
            waited.append((loader.waited_s - before) / seconds)
            seconds = _timed(step, (kept for _ in range(args.steps)))
            replayed.append(batch_size * args.steps / seconds)
        gpu = busy.stop()
        validated = _validate(loader, batches, model, step, args.validations)
        alone = _alone(batches, batch_size)
        limit = decode_limit(loader, seconds=2.0).samples_per_s
    rate, ceiling = statistics.median(fed), statistics.median(replayed)
    shares = [1 - a / b for a, b in zip(fed, replayed, strict=True)]
    return Row(
        preset=args.preset,
        parameters=trainable_parameters(model),
        batch_size=batch_size,
        decode=decode,
        threads=loader.statistics().engine.threads,
        compile=args.compile,
        samples_per_s=rate,
        replayed_samples_per_s=ceiling,
        data_share=statistics.median(shares),
        rounds=[list(pair) for pair in zip(fed, replayed, strict=True)],
        host_waited=statistics.median(waited),
        mfu=step_flops(config, batch_size).utilisation(batch_size / rate, PEAK),
        gpu_busy_percent=gpu,
        loader_samples_per_s=alone,
        decode_limit_samples_per_s=limit,
        first_batch_s=first,
        validated=validated,
        gpu_memory_gb=torch.cuda.max_memory_allocated() / 1e9,
    )


def _timed(step: Callable[[torch.Tensor], None], batches: Iterator[torch.Tensor]) -> float:
    """Seconds that the device takes for steps over batches."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for frames in batches:
        step(frames)
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _validate(
    loader: TorchLoader,
    batches: Iterator[Any],
    model: torch.nn.Module,
    step: Callable[[torch.Tensor], None],
    validations: int,
) -> Validated:
    firsts, nexts, memory, longest = [], [], [], 0.0

    def take(source: Iterator[Any]) -> tuple[torch.Tensor, float]:
        nonlocal longest
        started = time.perf_counter()
        frames = next(source)["frames"]
        waited = time.perf_counter() - started
        longest = max(longest, waited)
        return frames, waited

    for _ in range(validations):
        for number in range(VALIDATE_EVERY):
            frames, waited = take(batches)
            if number == 0 and firsts:
                nexts.append(waited)
            step(frames)
        torch.cuda.synchronize()
        validation = iter(loader.validation(VALIDATION_BATCHES))
        for number in range(VALIDATION_BATCHES):
            frames, waited = take(validation)
            if number == 0:
                firsts.append(waited)
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                model(frames)
        del validation
        memory.append(tree_memory(os.getpid()).anonymous / 1e6)
    return Validated(firsts, nexts, longest, memory)


def _alone(batches: Iterator[Any], batch_size: int, seconds: float = 4.0) -> float:
    """Samples/s of the loader where nothing is done with its batches."""
    for _ in islice(batches, 8):  # those that were prefetched
        pass
    torch.cuda.synchronize()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        next(batches)
        count += 1
    torch.cuda.synchronize()
    return count * batch_size / (time.perf_counter() - started)


class _GpuBusy:
    """Share of the time that the GPU had something to do, as nvidia-smi sees it."""

    def __init__(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                [*query, "-lms", "500"], stdout=subprocess.PIPE, text=True
            )
        except OSError:
            self._process = None

    def stop(self) -> float | None:
        """The mean so far."""
        if self._process is None:
            return None
        self._process.terminate()
        out, _ = self._process.communicate()
        seen = [float(line) for line in out.split() if line.replace(".", "").isdigit()]
        return statistics.mean(seen) if seen else None


if __name__ == "__main__":
    main()
