"""Copying batches to the device while the step before them runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from headrace.errors import UsageError

__all__ = ["device_batches"]


def device_batches(
    batches: Iterable[Mapping[str, Any]],
    *,
    fields: Sequence[str] | None = None,
    ahead: int = 1,
    sharding: Any = None,
) -> Iterator[dict[str, Any]]:
    """Batches as arrays on the device, so many of them ahead of the loop.

    `fields` leaves the others on the host. `sharding` is JAX's own (a device, a `NamedSharding`);
    the arrays that are given hold what is this process's part of the batch.
    """
    if ahead < 0:
        raise UsageError(f"ahead is {ahead}", remedy="Give 0 or more batches")
    waiting: deque[dict[str, Any]] = deque()
    for batch in batches:
        chosen = batch if fields is None else {name: batch[name] for name in fields}
        # Returns at once; the copy goes on beside the step.
        waiting.append({name: jax.device_put(value, sharding) for name, value in chosen.items()})
        if len(waiting) > ahead:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
