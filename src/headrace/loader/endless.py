"""What every loader has: training batches without end on an engine, a state, and an end."""

from __future__ import annotations

import logging
import sys
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from headrace.engine.engine import Engine
from headrace.engine.machine import ranks_on_node
from headrace.engine.slots import ArraySpec, Budget, Lock, SharedMemory
from headrace.engine.statistics import Span
from headrace.engine.stream import Filled, Stream
from headrace.engine.workers import PROCESS_BYTES, Fill, Work, Workers
from headrace.errors import UsageError
from headrace.loader.options import SharedOptions, rank_and_world_size
from headrace.sampling.bijection import Ints
from headrace.sampling.ranks import draws_after, rank_numbers
from headrace.sampling.sampler import SamplerState

_log = logging.getLogger("headrace")

_PLANNED_SAMPLES = 4096  # planned at once: numpy's cost per call is shared by many samples


class BatchPlanner(Protocol):
    """Plans batches."""

    def batches(self, numbers: Sequence[Ints], /) -> Sequence[tuple[Any, Sequence[Any]]]:
        """What each batch is, and its tasks, given its draw numbers."""


class Sizes(Protocol):
    """What a loader may use of the machine."""

    @property
    def slots(self) -> int:
        """Batches of training that may exist at first."""

    @property
    def most_slots(self) -> int:
        """And where steps are uneven."""

    @property
    def budget(self) -> int:
        """Bytes for everything."""

    @property
    def threads(self) -> int:
        """Workers."""

    @property
    def processes(self) -> int:
        """Workers that may have a process."""


class EndlessLoader(ABC):
    """The part of a loader that does not depend on what a sample is."""

    def __init__(
        self,
        options: SharedOptions,
        sizes: Sizes,
        specs: Mapping[str, ArraySpec],
        planner: BatchPlanner,
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

    def record_spans(self, record: bool) -> tuple[list[Span], ...]:
        """Begin or end to record what each worker does when; the spans so far, by worker."""
        return self._engine.record_spans(record)

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._finalizer()

    def check_open(self) -> None:
        """Raise if it is closed."""
        if not self._finalizer.alive:
            raise closed_error()

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
        self.check_open()
        if self._stream is None:
            sequence = TrainingSequence(
                self._planner, self._draws, self._batch_size, self._rank, self._world_size
            )
            self._stream = self._open(sequence, self._room.slots, self._room.most_slots)
            self._start, self._delivered = self._draws, 0
        try:
            filled = next(self._stream)
        except StopIteration:  # training has no end: it was closed meanwhile
            raise closed_error() from None
        self._delivered += 1
        return filled

    def _open(self, sequence: Any, slots: int, most: int = 0) -> Stream:
        return self._engine.stream(sequence, self._specs, slots, self._lock, most=most)


def closed_error() -> UsageError:
    """What every use of a closed loader raises."""
    return UsageError("the loader is closed", remedy="Make a new one, or close it later")


def refuse_dataloader_worker() -> None:
    """Raise in a worker process of torch's DataLoader, where each would load the same batches.

    Called before anything is opened: in a forked worker OpenCV may wait for threads that the fork
    left behind.
    """
    data = sys.modules.get("torch.utils.data")  # imported wherever such a worker runs
    info = data.get_worker_info() if data is not None else None
    if info is not None:
        raise UsageError(
            f"this is worker {info.id} of {info.num_workers} of torch's DataLoader: each of them "
            "would load the same batches",
            remedy="A loader has workers of its own: iterate over it directly, or give the "
            "DataLoader num_workers=0 and batch_size=None",
        )


class _Planned(ABC):
    """Plans several batches at once and hands them out one by one."""

    def __init__(self, planner: BatchPlanner, batch_size: int) -> None:
        self._planner = planner
        self._most = max(1, _PLANNED_SAMPLES // batch_size)
        self._ahead = 1  # the first batch is not to wait for the plan of others
        self._planned: deque[tuple[Any, Sequence[Any]]] = deque()

    @abstractmethod
    def _numbers(self) -> Ints | None:
        """Draw numbers of the next batch; None at the end."""

    def __next__(self) -> tuple[Any, Sequence[Any]]:
        if not self._planned:
            numbers: list[Ints] = []
            while len(numbers) < self._ahead and (batch := self._numbers()) is not None:
                numbers.append(batch)
            if not numbers:
                raise StopIteration
            self._ahead = min(4 * self._ahead, self._most)
            self._planned.extend(self._planner.batches(numbers))
        return self._planned.popleft()


class TrainingSequence(_Planned):
    """This rank's batches from a number of draws on, without end."""

    def __init__(
        self, planner: BatchPlanner, draws: int, batch_size: int, rank: int, world_size: int
    ) -> None:
        super().__init__(planner, batch_size)
        self._draws, self._size, self._rank, self._world = draws, batch_size, rank, world_size
        self._next = 0

    def _numbers(self) -> Ints | None:
        self._next += 1
        return rank_numbers(self._draws, self._next - 1, self._size, self._rank, self._world)


class ValidationSequence(_Planned):
    """This rank's batches of one pass, the last one shorter; at most `limit` of them."""

    def __init__(
        self,
        planner: BatchPlanner,
        length: int,
        batch_size: int,
        rank: int,
        world_size: int,
        limit: int | None,
    ) -> None:
        super().__init__(planner, batch_size)
        self._length, self._size, self._rank, self._world = length, batch_size, rank, world_size
        self._limit = limit
        self._next = 0

    def _numbers(self) -> Ints | None:
        if self._limit is not None and self._next >= self._limit:
            return None
        numbers = rank_numbers(0, self._next, self._size, self._rank, self._world)
        self._next += 1
        inside = numbers[numbers < self._length]
        return inside if len(inside) else None


def make_engine(
    options: SharedOptions,
    sizes: Sizes,
    specs: Mapping[str, ArraySpec],
    work: Work,
    perform: Callable[[Any, Fill], None],
    *,
    held: int = 0,
    process_bytes: int = PROCESS_BYTES,
) -> Engine:
    """An engine for a work, with a budget of which `held` bytes are taken already."""
    ranks = ranks_on_node()
    if (
        ranks > 1
        and not options.workers
        and rank_and_world_size(options.rank, options.world_size)[0] == 0
    ):
        _log.warning(
            "%d ranks share this node: each has %d workers (workers= asks for another number)",
            ranks,
            sizes.threads,
        )
    budget = Budget(sizes.budget)
    budget.charge(held, "what all workers share")
    shared = SharedMemory() if sizes.processes else None
    workers = Workers(
        work,
        perform,
        specs,
        budget,
        shared,
        processes=sizes.processes,
        process_bytes=process_bytes,
    )
    return Engine(
        sizes.threads,
        workers,
        budget,
        shared=shared,
        keep_free=options.keep_free_bytes,
        notice=_log.warning,
    )
