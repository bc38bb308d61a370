"""The original system as a backend: TFDS and tf.data, with the options its users tuned.

With it one can check headrace's claims on one's own data and reproduce what the users found.
TensorFlow is imported when it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from headrace.measure.baselines.baseline import Baseline
from headrace.measure.baselines.tfdata.batches import TfdataBatches
from headrace.measure.baselines.tfdata.options import Options, tfdata_knobs
from headrace.measure.baselines.tfdata.sources import remote_sources

__all__ = ["BASELINE"]


def _shuffle(options: Mapping[str, Any]) -> str:
    buffers = Options.from_values(options).shuffle
    if buffers.global_buffer:
        return f"buffer of {buffers.global_buffer} samples of the mixture"
    return "none but the order of mixing"


BASELINE = Baseline(
    name="tfdata",
    needs=("tensorflow", "tensorflow_datasets"),
    install="pip install 'headrace[tf]'",
    shuffle=_shuffle,
    open=lambda job, _: closing(TfdataBatches(job)),
    options=Options().flat(),
    knobs=tfdata_knobs,
    remote=lambda job: remote_sources(job.mixture, Options.from_values(job.options)),
    check=Options.from_values,
)
