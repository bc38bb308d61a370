"""headrace feeds GPUs with training data from mixtures of many robot-learning datasets.

>>> import headrace as hr
>>> catalog = hr.Catalog.open("oxe/bridge/0.1.0")            # doctest: +SKIP
>>> episode = catalog.episodes("train[:90%]")[0]             # doctest: +SKIP
>>> catalog.frame(episode, t=3).shape                        # doctest: +SKIP
(480, 640, 3)
"""

from typing import TYPE_CHECKING, Any

from headrace.catalog.catalog import Catalog, EpisodeInfo
from headrace.catalog.parquet import ParquetCatalog
from headrace.config import Mixture, Source
from headrace.config.registry import KnownDataset, known_dataset, known_datasets
from headrace.errors import (
    BudgetError,
    CatalogError,
    DataError,
    DatasetError,
    HeadraceError,
    ImageError,
    RecordError,
    SelectionError,
    SplitError,
    UnknownDatasetError,
    UnknownFieldError,
    UsageError,
    WorkerError,
)
from headrace.formats.features import Field, Schema
from headrace.formats.rlds import find_datasets
from headrace.loader import Batch, Loader, LoaderOptions
from headrace.loader.options import RowOptions, WindowSpec
from headrace.loader.rows import RowLoader, RowSet, RowTransform, WindowDraw
from headrace.reading.local import ByteRange

if TYPE_CHECKING:
    from headrace.tuning.doctor import Doctor
    from headrace.tuning.examine import examine_step

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BudgetError",
    "ByteRange",
    "Catalog",
    "CatalogError",
    "DataError",
    "DatasetError",
    "Doctor",
    "EpisodeInfo",
    "Field",
    "HeadraceError",
    "ImageError",
    "KnownDataset",
    "Loader",
    "LoaderOptions",
    "Mixture",
    "ParquetCatalog",
    "RecordError",
    "RowLoader",
    "RowOptions",
    "RowSet",
    "RowTransform",
    "Schema",
    "SelectionError",
    "Source",
    "SplitError",
    "UnknownDatasetError",
    "UnknownFieldError",
    "UsageError",
    "WindowDraw",
    "WindowSpec",
    "WorkerError",
    "__version__",
    "examine_step",
    "find_datasets",
    "known_dataset",
    "known_datasets",
]


def __getattr__(name: str) -> Any:
    """What few programs need is imported when it is asked for."""
    if name == "Doctor":
        from headrace.tuning.doctor import Doctor

        return Doctor
    if name == "examine_step":
        from headrace.tuning.examine import examine_step

        return examine_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
