"""How fast a training step of the LAQ model is without a loader: `python benchmarks/laq_step.py`.

Prints one JSON line a setting: milliseconds a step, samples a second, share of the peak (MFU) and
memory. The DINO teacher has random weights, which cost the same. These are the rates that a loader
would have to deliver to keep the accelerator busy.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace

import torch

from headrace.recipes.laq import (
    Laq,
    LaqConfig,
    Teachers,
    TrainingOptions,
    make_optimizer,
    step_flops,
    trainable_parameters,
)
from headrace.recipes.laq.blocks import PositionConvolution
from headrace.recipes.laq.teachers import DinoV3

_PRESETS = {
    "full": lambda: LaqConfig(flow_decoder=False),
    "lapa": LaqConfig.lapa,
    "small": LaqConfig.small,
    "tiny": LaqConfig.tiny,
}


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a training step."""

    device: str
    parameters: int
    batch_size: int
    compile: bool
    peg: str  #: method of the position convolution
    step_ms: float  #: mean over the measured steps
    samples_per_s: float
    tflops: float  #: operations a second, in 10^12
    mfu: float  #: the same as a share of the peak given
    memory_gb: float  #: most that torch had allocated


def measure(
    config: LaqConfig,
    batch_size: int,
    *,
    steps: int = 20,
    warmup: int = 5,
    compile: bool = False,
    peg: str = "auto",
    peak: float = 989e12,
    device: str | None = None,
) -> Speed:
    """Train on random frames and time it, in bfloat16 where there is a GPU."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cuda = place.type == "cuda"
    torch.manual_seed(0)
    model = Laq(config, Teachers(DinoV3() if config.features == "dino" else None)).to(place)
    for module in model.modules():
        if isinstance(module, PositionConvolution):
            module.method = peg  # type: ignore[assignment]
    if compile:
        model.compile_blocks()
    optimizer = make_optimizer(model, TrainingOptions())
    shape = (batch_size, 3, 2, config.image_size, config.image_size)
    frames = torch.randint(0, 256, shape, dtype=torch.uint8, device=place)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    started = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            if cuda:
                torch.cuda.synchronize()
            started = time.perf_counter()
        with torch.autocast(place.type, torch.bfloat16, enabled=cuda):
            loss = model(frames).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / steps
    flops = step_flops(config, batch_size)
    return Speed(
        device=torch.cuda.get_device_name() if cuda else "cpu",
        parameters=trainable_parameters(model),
        batch_size=batch_size,
        compile=compile,
        peg=peg,
        step_ms=1000 * seconds,
        samples_per_s=batch_size / seconds,
        tflops=flops.total / seconds / 1e12,
        mfu=flops.utilisation(seconds, peak),
        memory_gb=torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0,
    )


def main() -> None:
    """Measure every requested combination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(_PRESETS), default="full")
    parser.add_argument("--batch", type=int, nargs="+", default=[128])
    parser.add_argument("--peg", nargs="+", choices=["auto", "conv", "shift"], default=["auto"])
    parser.add_argument("--compile", type=int, nargs="+", choices=[0, 1], default=[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--peak", type=float, default=989e12, help="operations a second (H200)")
    parser.add_argument("--no-dino", action="store_true", help="projected pixels instead")
    options = parser.parse_args()
    config = _PRESETS[options.preset]()
    if options.no_dino:
        config = replace(config, features="pixel")
    for compiled in options.compile:
        for peg in options.peg:
            for batch in options.batch:
                speed = measure(
                    config,
                    batch,
                    steps=options.steps,
                    warmup=options.warmup,
                    compile=bool(compiled),
                    peg=peg,
                    peak=options.peak,
                )
                print(json.dumps(asdict(speed)), flush=True)


if __name__ == "__main__":
    main()
