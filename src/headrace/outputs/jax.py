"""Batches on a JAX device: `device_batches`. Needs jax: `pip install 'headrace[jax]'`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import UsageError

try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise UsageError(
        "batches on a device (headrace.outputs.jax) need jax, which is not installed",
        remedy="pip install 'headrace[jax]', and JAX's own wheel for your accelerator",
    ) from error

__all__ = ["device_batches"]


def device_batches(
    batches: Iterable[Mapping[str, Any]],
    *,
    fields: Sequence[str] | None = None,
    ahead: int = 1,
    sharding: Any = None,
) -> Iterator[dict[str, Any]]:
    """Batches as arrays on the device, copied while earlier steps run.

    `ahead` is how many are copied before the loop asks for them. `fields` chooses what is copied;
    the rest is left out. `sharding` is JAX's own (a device, a `NamedSharding`); the arrays hold
    this process's part of the batch.
    """
    if ahead < 0:
        raise UsageError(f"ahead is {ahead}", remedy="Give 0 or more batches")
    waiting: deque[dict[str, Any]] = deque()
    for batch in batches:
        chosen = batch if fields is None else {name: batch[name] for name in fields}
        # Returns at once; the copy runs beside the step.
        waiting.append({name: jax.device_put(value, sharding) for name, value in chosen.items()})
        if len(waiting) > ahead:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
