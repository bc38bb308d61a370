"""Synthetic RLDS datasets in the exact layout of TFDS, written without TensorFlow.

`synthesize` writes the presets; `oxe29.datasets()` and `odd.datasets()` know every value of
every episode; `write_dataset` writes episodes of your own; `read_tag` and `find_object` read
pictures back. `synthesize_network` writes network measurements as Parquet files.
"""

from headrace.testing.network import SynthesizedRows, synthesize_network
from headrace.testing.oxe29 import episode_values
from headrace.testing.picture import Tag, find_object, read_tag
from headrace.testing.synth import Synthesized, SyntheticDataset, synthesize
from headrace.testing.writer import write_dataset

__all__ = [
    "Synthesized",
    "SynthesizedRows",
    "SyntheticDataset",
    "Tag",
    "episode_values",
    "find_object",
    "read_tag",
    "synthesize",
    "synthesize_network",
    "write_dataset",
]
