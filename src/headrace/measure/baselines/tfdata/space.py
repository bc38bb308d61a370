"""What a search tries of the tf.data backend, in the order of likely effect.

The first ones are those that `knobs.py` has figures for; the order of the rest was not measured.
Left alone are options that say what is delivered (samples_per_episode, metadata, deterministic),
and those whose default is never worse (skip_steps_decoding, only_needed_fields). Reading more
shards or episodes in turn mixes samples better, never worse, so it may be tried.
"""

from __future__ import annotations

from headrace.measure.baselines.baseline import Knob
from headrace.measure.baselines.tfdata.knobs import AUTOTUNE

__all__ = ["tfdata_knobs"]


def tfdata_knobs(cpus: int) -> tuple[Knob, ...]:
    """The knobs on a machine with so many CPUs."""
    found = (
        # Frames are decoded in the sources then, which must have calls enough of their own.
        Knob(
            "pipeline.emit_encoded_pairs",
            (False,),
            along={"pipeline.post_mix_decode_resize": False, "mixing.parallelism_mode": "full"},
        ),
        Knob("pipeline.transform_parallelism", (AUTOTUNE, 2 * cpus)),
        Knob("prefetch.episode_queue_buffer", (0, 4)),
        Knob("mixing.parallelism_mode", ("sqrt", "full")),
        Knob("prefetch.per_dataset_stream_buffer", (1, 8)),
        Knob("tfds_read.decode_parallelism", (AUTOTUNE, 2)),
        Knob("mixing.strategy", ("choose", "python")),
        Knob("prefetch.final_stream_buffer", (AUTOTUNE, 4)),
        Knob("mixing.per_dataset_private_threadpool_size", (1, cpus)),
        Knob("tfds_read.cycle_length", (4, 16)),
        Knob("tfds_read.interleave_parallelism", (AUTOTUNE,), along={"tfds_read.cycle_length": 4}),
        Knob("tfds_read.block_length", (16,), along={"tfds_read.cycle_length": 4}),
        Knob("pipeline.episode_concurrency", (4,)),
        Knob(
            "pipeline.interleave_parallelism",
            (AUTOTUNE,),
            along={"pipeline.episode_concurrency": 4},
        ),
        Knob("mixing.python_prefetch_threads", (cpus,), needs={"mixing.strategy": "python"}),
        Knob("mixing.python_prefetch_queue_size", (4,), needs={"mixing.strategy": "python"}),
        Knob("mixing.mix_block_length", (8,), reorders=True),
        Knob("shuffle.global_buffer", (100, 10_000), reorders=True),
    )
    return tuple(
        Knob(
            f"tfdata.{knob.key}",
            knob.values,
            {f"tfdata.{key}": value for key, value in knob.along.items()},
            {f"tfdata.{key}": value for key, value in knob.needs.items()},
            knob.reorders,
        )
        for knob in found
    )
