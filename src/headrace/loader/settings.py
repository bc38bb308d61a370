"""What a loader is told, checked, and what follows from it: shapes of a slot, slots, budget."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.resize import Filter, check_filter
from headrace.engine.memory import allowed_memory, available_memory
from headrace.engine.shared import sharing_is_possible
from headrace.engine.slots import ArraySpec, slot_bytes
from headrace.errors import BudgetError, UsageError
from headrace.jobs import allowed_cpus
from headrace.loader.opened import OpenedSource, WindowSpec

__all__ = ["Settings", "Sizes", "camera_size", "parse_size", "rank_and_world"]

#: Batches that wait ready for the consumer at first: 100 MB at batch 64 of 256x256 pairs. More do
#: not make an even consumer faster (benchmarks/results has the sweep).
PREFETCH = 4
#: Where the consumer waits although threads were idle, its steps are uneven and the prefetch grows
#: up to so many batches. Not tuned: hides a pause of 16 steps.
DEEPEST = 16
#: Where there are fewer processes, and unless more are asked for. Measured on 16 cores: every frame
#: takes the interpreter lock a few times, and with 16 threads handing it on takes longer than
#: decoding (benchmarks/results).
MOST_THREADS = 8
#: What a worker process holds beside its reading and decoding: the interpreter and the libraries.
#: Measured at work: 37 MB anonymous on Python 3.11 with OpenCV 4, 66 MB on 3.12 with OpenCV 5.
PROCESS_BYTES = 64 << 20
#: Memory to leave free, where it is at most an eighth of what the machine or container has.
KEEP_FREE = 1 << 30
VALIDATION_SLOTS = 2
_LEAST_SLOTS = 3  # a batch of training with the consumer, and two of validation
SPARE_SLOTS = 2  # allowed for, but only made when a consumer keeps batches
_READ_BUFFER = 1 << 20  # encoded bytes a thread may hold: ten times a large frame
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, slots=True)
class Settings:
    """A loader's options, with the defaults filled in."""

    batch_size: int  #: samples a batch of this rank has
    height: int
    width: int
    seed: int
    window: WindowSpec
    metadata: Literal["none", "dataset", "full"]
    action_chunk: int  #: actions of a sample; 0: one, summed over the window
    threads: int
    threads_given: bool  #: by the user; else there may be fewer
    processes: int  #: so many threads may pass their work on to a process
    #: Bytes; None: what is needed, at most a quarter of what is free (half, for three batches).
    budget: int | None
    keep_free: int
    resize: Filter
    max_errors: int  #: samples that may be skipped; 0: the first damaged one is raised
    rank: int
    world: int
    encoded: bool  #: frames may be handed on as JPEGs

    @staticmethod
    def checked(
        *,
        batch_size: int,
        image_size: int | tuple[int, int],
        seed: int,
        frames: WindowSpec | str,
        metadata: str,
        action_chunk: int | None,
        threads: int | None,
        processes: bool,
        budget: int | str | None,
        keep_free: int | str | None,
        resize: str,
        on_error: str,
        max_errors: int,
        rank: int | None,
        world: int | None,
        encoded: bool = False,
    ) -> Settings:
        """Check what a person wrote."""
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        for name, value in (("batch_size", batch_size), ("image_size", min(height, width))):
            if value < 1:
                raise UsageError(f"{name} is {value}", remedy="Give a number from 1 upwards")
        if metadata not in ("none", "dataset", "full"):
            raise UsageError(f"metadata is {metadata!r}", remedy="Give none, dataset or full")
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error is {on_error!r}", remedy="Give raise or skip")
        check_filter(resize)
        rank, world = rank_and_world(rank, world)
        window = WindowSpec(cast(Any, frames)) if isinstance(frames, str) else frames
        return Settings(
            batch_size=batch_size,
            height=height,
            width=width,
            seed=seed,
            window=window,
            metadata=cast(Any, metadata),
            action_chunk=action_chunk or 0,
            threads=threads or allowed_cpus(),
            threads_given=bool(threads),
            processes=(threads or allowed_cpus()) if processes and sharing_is_possible() else 0,
            budget=None if budget is None else parse_size(budget),
            keep_free=(
                min(KEEP_FREE, allowed_memory() // 8)
                if keep_free is None
                else parse_size(keep_free)
            ),
            resize=cast(Filter, resize),
            max_errors=max_errors if on_error == "skip" else 0,
            rank=rank,
            world=world,
            encoded=encoded,
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory: the arrays of a slot, how many slots, and the budget; threads that fit into it."""

    specs: Mapping[str, ArraySpec]
    slots: int  #: of training, at first
    most_slots: int  #: of training, where steps are uneven
    validation_slots: int
    budget: int
    threads: int
    processes: int  #: that there is room for

    @staticmethod
    def of(settings: Settings, sources: Sequence[OpenedSource]) -> Sizes:
        """What these sources need, within the budget."""
        specs = _specs(settings, sources)
        one = slot_bytes(specs)
        decoder = FrameDecoder(filter=settings.resize)
        target = (settings.height, settings.width)
        scratch = max(decoder.scratch_limit(camera_size(s), target) for s in sources)
        threads = settings.threads
        working = threads * (scratch + _READ_BUFFER)
        processes = settings.processes
        wanted = PREFETCH + 2 + VALIDATION_SLOTS  # and one being filled, one with the consumer
        most = wanted + DEEPEST - PREFETCH
        limit = settings.budget
        if limit is None:
            free = available_memory()
            limit = (most + SPARE_SLOTS) * one + working + processes * PROCESS_BYTES
            limit = max(min(limit, free // 4), min(_LEAST_SLOTS * one + working, free // 2))
        # Half of the prefetch rather than a process, and a few processes rather than none.
        room = limit - working - (wanted - PREFETCH // 2) * one
        processes = max(0, min(processes, room // PROCESS_BYTES))
        if not settings.threads_given:
            threads = min(threads, max(processes, MOST_THREADS))
            working = threads * (scratch + _READ_BUFFER)
        fit = (limit - working - processes * PROCESS_BYTES) // one
        slots = min(wanted, fit)
        if slots < 2:
            raise BudgetError(
                f"a budget of {limit / 2**20:.0f} MiB does not hold two batches: each has "
                f"{one / 2**20:.1f} MiB, and {threads} threads need "
                f"{working / 2**20:.1f} MiB to read and decode",
                remedy="Raise the budget, or lower batch_size, image_size or threads",
            )
        validation = min(VALIDATION_SLOTS, slots - 2)  # none: training makes room for it
        return Sizes(
            specs=specs,
            slots=slots - validation,
            most_slots=max(slots, min(most, fit - SPARE_SLOTS)) - validation,
            validation_slots=validation,
            budget=limit,
            threads=threads,
            processes=processes,
        )


def camera_size(source: OpenedSource) -> tuple[int, int]:
    """Height and width of a source's camera; where they vary, as large as cameras get."""
    height, width = source.camera.shape[:2]
    return height or 1080, width or 1920


def _specs(settings: Settings, sources: Sequence[OpenedSource]) -> dict[str, ArraySpec]:
    batch, frames = settings.batch_size, len(sources[0].offsets)
    specs = {
        "frames": ArraySpec((batch, frames, settings.height, settings.width, 3), "uint8"),
    }
    if settings.encoded:
        specs["encoded"] = ArraySpec((batch, frames), "int32")
    if settings.metadata != "none":
        specs["dataset"] = ArraySpec((batch,), "int32")
    if settings.metadata == "full":
        action = max((s.action.dim for s in sources if s.action), default=0)
        state = max((s.state.dim for s in sources if s.state), default=0)
        specs["episode_id"] = ArraySpec((batch,), "int64")
        specs["frame_idx"] = ArraySpec((batch,), "int32")
        specs["offset"] = ArraySpec((batch,), "int32")
        specs["state"] = ArraySpec((batch, state), "float32")
        if settings.action_chunk:
            specs["action"] = ArraySpec((batch, settings.action_chunk, action), "float32")
            specs["action_is_pad"] = ArraySpec((batch, settings.action_chunk), "bool")
        else:
            specs["action"] = ArraySpec((batch, action), "float32")
    return specs


def parse_size(size: int | str) -> int:
    """A size in bytes, as a number or with a unit.

    >>> parse_size("256MiB"), parse_size("1.5GB")
    (268435456, 1500000000)
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmg]i?|)b?\s*", size.lower())
    if match is None:
        raise UsageError(f"{size!r} is no size", remedy="Write for example 512MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2]])


def rank_and_world(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """This process among its peers: as given, else from torchrun's or Slurm's environment."""
    if (rank is None) != (world is None):
        raise UsageError(
            f"rank is {rank} and world is {world}", remedy="Give both, or neither of them"
        )
    if rank is None or world is None:
        rank, world = 0, 1
        for rank_key, world_key in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank_key in os.environ and world_key in os.environ:
                rank, world = int(os.environ[rank_key]), int(os.environ[world_key])
                break
    if not 0 <= rank < world:
        raise UsageError(
            f"rank {rank} does not exist in a world of {world}",
            remedy=f"Ranks run from 0 to {world - 1}: look at `rank` and `world`, or at RANK and "
            "WORLD_SIZE in the environment",
        )
    return rank, world
