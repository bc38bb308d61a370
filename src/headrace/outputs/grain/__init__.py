"""Catalogs as Grain datasets: random access, headrace's order, and pipelines that are put together.

>>> from headrace.outputs.grain import grain_pipeline
>>> import headrace as hr
>>> dataset = grain_pipeline(hr.RowSet("measurements/train"), batch_size=256)  # doctest: +SKIP
>>> for batch in dataset:                                                      # doctest: +SKIP
...     train_step(batch)
"""

from headrace.outputs.grain.pipeline import Pipeline, grain_pipeline, map_dataset
from headrace.outputs.grain.sources import SampleSource, WindowSource

__all__ = ["Pipeline", "SampleSource", "WindowSource", "grain_pipeline", "map_dataset"]
