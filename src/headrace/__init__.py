"""headrace feeds GPUs with training data from mixtures of many robot-learning datasets.

>>> import headrace as hr
>>> with hr.Loader("oxe29.yaml", batch_size=64, image_size=256) as loader:  # doctest: +SKIP
...     for batch in loader:
...         train_step(batch.frames)       # uint8 [64, 2, 256, 256, 3]

Errors other than `HeadraceError`, which all of them are, live in `headrace.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.catalog.catalog import Catalog
from headrace.catalog.parquet import ParquetCatalog
from headrace.config import Mixture, Source
from headrace.config.registry import known_dataset, known_datasets
from headrace.errors import HeadraceError
from headrace.formats.rlds import find_datasets
from headrace.loader import Batch, Loader, LoaderOptions
from headrace.loader.options import RowOptions, WindowSpec
from headrace.loader.rows import RowLoader, RowSet, RowTransform, WindowDraw

if TYPE_CHECKING:
    from headrace.outputs.torch import TorchLoader
    from headrace.tuning.doctor import Doctor
    from headrace.tuning.examine import examine_loop, examine_step

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Catalog",
    "Doctor",
    "HeadraceError",
    "Loader",
    "LoaderOptions",
    "Mixture",
    "ParquetCatalog",
    "RowLoader",
    "RowOptions",
    "RowSet",
    "RowTransform",
    "Source",
    "TorchLoader",
    "WindowDraw",
    "WindowSpec",
    "__version__",
    "examine_loop",
    "examine_step",
    "find_datasets",
    "known_dataset",
    "known_datasets",
]

#: Imported when they are first used: they need torch, or are needed by few programs.
_LAZY = {
    "Doctor": "headrace.tuning.doctor",
    "TorchLoader": "headrace.outputs.torch",
    "examine_loop": "headrace.tuning.examine",
    "examine_step": "headrace.tuning.examine",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
