"""Sequences of batches for an engine's stream: training without end, validation once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loader.plan import Draft, Planner, Task
from headrace.sampling.ranks import rank_numbers

__all__ = ["TrainingSequence", "ValidationSequence"]

_PLANNED_SAMPLES = 4096  # planned at once: numpy's cost per call is shared by many samples
Ints = NDArray[np.int64]


class _Planned(ABC):
    """Plans several batches at once and hands them out one by one."""

    def __init__(self, planner: Planner, batch_size: int) -> None:
        self._planner = planner
        self._most = max(1, _PLANNED_SAMPLES // batch_size)
        self._ahead = 1  # the first batch is not to wait for the plan of others
        self._planned: deque[tuple[Draft, list[Task]]] = deque()

    @abstractmethod
    def _numbers(self) -> Ints | None:
        """Draw numbers of the next batch; None at the end."""

    def __next__(self) -> tuple[Any, list[Any]]:
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
        self, planner: Planner, draws: int, batch_size: int, rank: int, world: int
    ) -> None:
        super().__init__(planner, batch_size)
        self._draws, self._size, self._rank, self._world = draws, batch_size, rank, world
        self._next = 0

    def _numbers(self) -> Ints | None:
        self._next += 1
        return rank_numbers(self._draws, self._next - 1, self._size, self._rank, self._world)


class ValidationSequence(_Planned):
    """This rank's batches of one pass, the last one shorter; at most `limit` of them."""

    def __init__(
        self,
        planner: Planner,
        length: int,
        batch_size: int,
        rank: int,
        world: int,
        limit: int | None,
    ) -> None:
        super().__init__(planner, batch_size)
        self._length, self._size, self._rank, self._world = length, batch_size, rank, world
        self._limit = limit
        self._next = 0

    def _numbers(self) -> Ints | None:
        if self._limit is not None and self._next >= self._limit:
            return None
        numbers = rank_numbers(0, self._next, self._size, self._rank, self._world)
        self._next += 1
        inside = numbers[numbers < self._length]
        return inside if len(inside) else None
