"""What every loader has: training batches without end on an engine, a state, and an end."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from headrace.engine.engine import Engine
from headrace.engine.slots import ArraySpec, Lock
from headrace.engine.stream import Filled, Stream
from headrace.loader.options import SharedOptions, rank_and_world_size
from headrace.loader.sequence import TrainingSequence
from headrace.sampling.ranks import draws_after
from headrace.sampling.sampler import SamplerState

__all__ = ["EndlessLoader"]


class _Sizes(Protocol):
    @property
    def slots(self) -> int: ...
    @property
    def most_slots(self) -> int: ...


class EndlessLoader(ABC):
    """The part of a loader that does not depend on what a sample is."""

    def __init__(
        self,
        options: SharedOptions,
        sizes: _Sizes,
        specs: Mapping[str, ArraySpec],
        planner: Any,
        engine: Engine,
        lock: Lock | None = None,
    ) -> None:
        """`engine` must know nothing of the loader, so that it can be collected."""
        self._batch_size, self._seed = options.batch_size, options.seed
        #: This process among those that train together; may be set until the first batch.
        self._rank, self._world_size = rank_and_world_size(options.rank, options.world_size)
        self._room = sizes
        self._specs, self._planner, self._engine, self._lock = specs, planner, engine, lock
        self._start = 0  # draws consumed before the stream began
        self._delivered = 0
        self._stream: Stream | None = None
        self._finalizer = weakref.finalize(self, engine.close)

    @abstractmethod
    def _fingerprint(self) -> dict[str, Any]:
        """Everything that the sequence of samples depends on, beside the seed."""

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands: plain values, the same on every rank."""
        return SamplerState(self._draws, self._seed, self._fingerprint()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken; batch size, ranks and workers may be others."""
        loaded = SamplerState.from_dict(state)
        loaded.check(self._seed, self._fingerprint())
        if self._stream is not None:
            self._engine.drop(self._stream)
            self._stream = None
        self._start, self._delivered = loaded.draws, 0

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _draws(self) -> int:
        """Draws consumed by all ranks together."""
        return draws_after(self._start, self._delivered, self._batch_size, self._world_size)

    def _next_filled(self) -> Filled:
        """The next batch of training."""
        if self._stream is None:
            sequence = TrainingSequence(
                self._planner, self._draws, self._batch_size, self._rank, self._world_size
            )
            self._stream = self._open(sequence, self._room.slots, self._room.most_slots)
            self._start, self._delivered = self._draws, 0
        filled = next(self._stream)
        self._delivered += 1
        return filled

    def _open(self, sequence: Any, slots: int, most: int = 0) -> Stream:
        return self._engine.stream(sequence, self._specs, slots, self._lock, most=most)
