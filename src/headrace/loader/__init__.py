"""The one place where the rooms meet: from a mixture to batches."""

from headrace.loader.batch import Batch
from headrace.loader.loader import Loader
from headrace.loader.options import LoaderOptions

__all__ = ["Batch", "Loader", "LoaderOptions"]
