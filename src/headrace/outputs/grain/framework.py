"""Grain, if it is installed, and the one place that knows which of its classes has which method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

__all__ = ["DatasetIterator", "IterDataset", "MapDataset", "to_batches"]

try:
    from grain import DatasetIterator, IterDataset, MapDataset
except ModuleNotFoundError as error:
    if error.name != "grain":
        raise
    raise UsageError(
        "pipelines for JAX (headrace.outputs.grain) need grain, which is not installed",
        remedy="pip install 'headrace[jax]'",
    ) from None

if TYPE_CHECKING:  # Grain has no types
    DatasetIterator = IterDataset = MapDataset = Any


def to_batches(
    dataset: Any, *, threads: int, prefetch: int, workers: int = 0, worker_prefetch: int = 2
) -> Any:
    """Random access to batches, as an iteration: by threads, or by worker processes.

    `dataset` is a `MapDataset` whose elements are batches; `prefetch` counts them too. Worker
    processes come after `to_iter_dataset`: `mp_prefetch` cuts what is below that among them, so
    that each makes whole batches, and gives them back in order.
    """
    import grain

    read = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    batches = dataset.to_iter_dataset(read)
    if not workers:
        return batches
    _let_flags_be_read()
    options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=worker_prefetch
    )
    for owner in (batches, dataset):  # the iteration has it in all versions known to us
        if hasattr(owner, "mp_prefetch"):
            return owner.mp_prefetch(options)
    raise UsageError(
        f"Grain {getattr(grain, '__version__', '')} has no mp_prefetch on {type(batches).__name__}",
        remedy="Use num_workers=0 (threads), or another version of Grain",
    )


def _let_flags_be_read() -> None:
    """Grain's workers look at absl's flags, which nobody has parsed unless `absl.app.run` did."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
