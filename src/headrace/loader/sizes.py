"""What follows from a loader's options: arrays of a slot, slots, workers, and the memory of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.decoding.frame import FrameDecoder
from headrace.engine.machine import allowed_cpus, available_memory, ranks_on_node
from headrace.engine.slots import ArraySpec, sharing_is_possible, slot_bytes
from headrace.engine.workers import PROCESS_BYTES
from headrace.errors import BudgetError
from headrace.loader.mixture import OpenedSource
from headrace.loader.options import LoaderOptions

#: Batches that wait ready for the consumer at first: 100 MB at batch 64 of 256x256 pairs. More do
#: not make an even consumer faster (benchmarks/results has the sweep).
PREFETCH = 4
#: Where the consumer waits although threads were idle, its steps are uneven and the prefetch grows
#: up to this number of batches. Not tuned: hides a pause of 16 steps.
DEEPEST = 16
#: Where there are fewer processes, and unless more are asked for. Measured on 16 cores: every frame
#: takes the interpreter lock a few times, and with 16 threads handing it on takes longer than
#: decoding (benchmarks/results).
MOST_THREADS = 8
VALIDATION_SLOTS = 2
_LEAST_SLOTS = 3  # a batch of training with the consumer, and two of validation
SPARE_SLOTS = 2  # allowed for, but only made when a consumer keeps batches
_READ_BUFFER = 1 << 20  # encoded bytes a thread may hold: ten times a large frame


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
    def of(
        options: LoaderOptions, sources: Sequence[OpenedSource], *, encoded: bool = False
    ) -> Sizes:
        """What these sources need, within the budget."""
        specs = batch_specs(options, sources, encoded=encoded)
        one = slot_bytes(specs)
        decoder = FrameDecoder(filter=options.resize)
        scratch = max(decoder.scratch_limit(camera_size(s), options.size) for s in sources)
        threads, processes = requested_workers(options.workers)
        working = threads * (scratch + _READ_BUFFER)
        wanted = PREFETCH + 2 + VALIDATION_SLOTS  # and one being filled, one with the consumer
        most = wanted + DEEPEST - PREFETCH
        limit = options.memory_bytes
        if limit is None:
            free = available_memory() // ranks_on_node()
            limit = (most + SPARE_SLOTS) * one + working + processes * PROCESS_BYTES
            limit = max(min(limit, free // 4), min(_LEAST_SLOTS * one + working, free // 2))
        # Half of the prefetch rather than a process, and a few processes rather than none.
        room = limit - working - (wanted - PREFETCH // 2) * one
        processes = max(0, min(processes, room // PROCESS_BYTES))
        if not options.workers:
            threads = min(threads, max(processes, MOST_THREADS))
            working = threads * (scratch + _READ_BUFFER)
        fit = (limit - working - processes * PROCESS_BYTES) // one
        slots = min(wanted, fit)
        if slots < 2:
            raise BudgetError(
                f"a memory budget of {limit / 2**20:.0f} MiB does not hold two batches: each has "
                f"{one / 2**20:.1f} MiB, and {threads} workers need "
                f"{working / 2**20:.1f} MiB to read and decode",
                remedy="Raise `memory`, or lower batch_size, image_size or workers",
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


def requested_workers(workers: int | None) -> tuple[int, int]:
    """Threads, and processes for them, that the option asks for, before memory is considered."""
    threads = workers or allowed_cpus()
    return threads, threads if workers != 0 and sharing_is_possible() else 0


def batch_specs(
    options: LoaderOptions, sources: Sequence[OpenedSource], *, encoded: bool = False
) -> dict[str, ArraySpec]:
    """The arrays of a batch; with `encoded`, frames may be JPEGs."""
    batch, frames = options.batch_size, len(sources[0].offsets)
    specs = {"frames": ArraySpec((batch, frames, *options.size, 3), "uint8")}
    if encoded:
        specs["encoded"] = ArraySpec((batch, frames), "int32")
    if options.metadata != "none":
        specs["dataset"] = ArraySpec((batch,), "int32")
    if options.metadata == "full":
        action = max((s.action.dim for s in sources if s.action), default=0)
        state = max((s.state.dim for s in sources if s.state), default=0)
        specs["episode_id"] = ArraySpec((batch,), "int64")
        specs["frame_idx"] = ArraySpec((batch,), "int32")
        specs["offset"] = ArraySpec((batch,), "int32")
        specs["state"] = ArraySpec((batch, state), "float32")
        if options.action_chunk:
            specs["action"] = ArraySpec((batch, options.action_chunk, action), "float32")
            specs["action_is_pad"] = ArraySpec((batch, options.action_chunk), "bool")
        else:
            specs["action"] = ArraySpec((batch, action), "float32")
    return specs
