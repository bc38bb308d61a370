"""LAQ on a GPU, fed by headrace: against the same steps over a batch that is there already.

    python benchmarks/laq_gpu.py DATA --preset full --batch 128 256 --out laq_gpu.json

DATA holds the 29 datasets (`headrace synth DATA`). For each batch size the model trains on the
mixture and on one batch again and again (the ceiling), in turns; what the first takes longer is the
data's part of the step. Validation runs in the middle on the same loader. The DINO teacher has
random weights, which cost the same as trained ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from headrace.measure.limit import decode_limit
from headrace.measure.process_tree import tree_memory
from headrace.outputs.torch import TorchLoader
from headrace.recipes.laq import Laq, LaqConfig, TrainingConfig, make_optimizer, step_flops
from headrace.recipes.laq.dinov3 import DinoV3
from headrace.recipes.laq.model import trainable_parameters
from headrace.recipes.laq.teachers import Teachers

PRESETS = {"full": lambda: LaqConfig(flow_decoder=False), "small": LaqConfig.small}
PEAK = 989e12  #: dense bfloat16 of an H200


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size."""

    preset: str
    parameters: int
    batch_size: int
    threads: int  #: of the loader
    compile: bool
    samples_per_s: float  #: trained on the mixture, median of the rounds
    replayed_samples_per_s: float  #: the ceiling
    data_share: float  #: of the step: how much shorter it is over a batch that is there
    rounds: list[list[float]]  #: samples/s of each round, mixture and replayed
    host_waited: float  #: share of the time that Python waited for batches
    mfu: float
    gpu_busy_percent: float | None
    decode_limit_samples_per_s: float
    first_batch_s: float
    validation_first_batch_s: float
    longest_step_ms: float
    memory_mb: float  #: anonymous, of all processes
    gpu_memory_gb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--steps", type=int, default=60, help="of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, help="of the loader (default: a CPU each)")
    parser.add_argument("--out", type=Path, default=Path("laq_gpu.json"))
    args = parser.parse_args()
    rows = []
    for batch in args.batch:
        rows.append(asdict(measure(args, batch)))
        print(json.dumps(rows[-1]), flush=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(args: argparse.Namespace, batch_size: int) -> Row:
    """One batch size: warm up, then rounds of both."""
    torch.manual_seed(0)
    config = PRESETS[args.preset]()
    dino = DinoV3() if config.features == "dino" else None
    model = Laq(config, Teachers(dino)).to("cuda")
    if args.compile:
        model.compile_blocks()
    optimizer = make_optimizer(model, TrainingConfig())

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
        metadata="full",
        threads=args.threads,
    ) as loader:
        batches = iter(loader)
        kept: Any = next(batches)["frames"].clone()
        first = time.perf_counter() - begun
        for _ in range(12):
            step(kept)
            step(next(batches)["frames"])
        fed, replayed, waited, longest = [], [], [], 0.0
        busy = _GpuBusy()
        for _ in range(args.rounds):
            before = loader.waited_s
            torch.cuda.synchronize()
            started = last = time.perf_counter()
            for number in range(args.steps):
                step(next(batches)["frames"])
                if number % 10 == 9:
                    torch.cuda.synchronize()
                    longest = max(longest, (time.perf_counter() - last) / 10)
                    last = time.perf_counter()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            fed.append(batch_size * args.steps / seconds)
            waited.append((loader.waited_s - before) / seconds)
            started = time.perf_counter()
            for _ in range(args.steps):
                step(kept)
            torch.cuda.synchronize()
            replayed.append(batch_size * args.steps / (time.perf_counter() - started))
        gpu = busy.stop()
        started = time.perf_counter()
        validation = iter(loader.validation(4))
        next(validation)
        validated = time.perf_counter() - started
        for _ in validation:
            pass
        memory = tree_memory(os.getpid()).anonymous
        limit = decode_limit(loader.loader, seconds=2.0).samples_per_s
    rate, ceiling = statistics.median(fed), statistics.median(replayed)
    shares = [1 - a / b for a, b in zip(fed, replayed, strict=True)]
    return Row(
        preset=args.preset,
        parameters=trainable_parameters(model),
        batch_size=batch_size,
        threads=loader.loader.settings.threads,
        compile=args.compile,
        samples_per_s=rate,
        replayed_samples_per_s=ceiling,
        data_share=statistics.median(shares),
        rounds=[list(pair) for pair in zip(fed, replayed, strict=True)],
        host_waited=statistics.median(waited),
        mfu=step_flops(config, batch_size).utilisation(batch_size / rate, PEAK),
        gpu_busy_percent=gpu,
        decode_limit_samples_per_s=limit,
        first_batch_s=first,
        validation_first_batch_s=validated,
        longest_step_ms=1000 * longest,
        memory_mb=memory / 1e6,
        gpu_memory_gb=torch.cuda.max_memory_allocated() / 1e9,
    )


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
