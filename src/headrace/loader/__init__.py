"""The one place where the rooms meet: from a mixture to batches."""

from headrace.loader.batch import Batch
from headrace.loader.loader import Loader

__all__ = ["Batch", "Loader"]
