"""From draw numbers to tasks: which bytes of which files make up a batch.

Planning is vectorised over many batches at once; what it leaves for the workers is a `SamplePlan`,
a row of plain numbers a sample, whose rows can be cut, sent to another process and read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from headrace.loader.mixture import OpenedSource
from headrace.loader.options import LoaderOptions
from headrace.sampling.bijection import Ints
from headrace.sampling.sampler import Draws

#: A task costs 100 us beside its samples, and what follows a decode finds cold caches: large tasks
#: are cheaper. Each also takes Python's lock from the training step twice: with tasks of half this
#: size a step bound by Python was 19% slower than over a batch that is there, with these 3%
#: (benchmarks/results/laq_h200_2026-11-15.md). This is about 40 ms of decoding.
_TASK_BYTES = 2 << 20
_TASK_SAMPLES = 32
_FEWEST_SAMPLES = 8


class Column:
    """A named column of a plan, as a view that can be read and written."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __get__(self, plan: Plan, owner: type[Plan]) -> Ints:
        column: Ints = plan.matrix[:, self.number]
        return column


class Plan:
    """Rows that are to be filled: a matrix of integers with named columns, cheap to cut."""

    __slots__ = ("matrix",)

    row = Column(0)  #: place in the batch
    draw = Column(1)  #: number of the draw

    def __init__(self, matrix: Ints) -> None:
        self.matrix = matrix

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(self.matrix[rows])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} rows>"


class Sample(NamedTuple):
    """One row of a `SamplePlan`, as plain numbers."""

    row: int  #: its place in the batch
    draw: int
    source: int
    shard: int
    record: int  #: number of the episode in its shard
    episode: int  #: number of the episode in its catalog
    steps: int  #: of the episode
    start: int
    action: int  #: offset in the file; -1: ask the catalog
    state: int
    text: int
    text_size: int
    offsets: list[int]  #: of the frames in the file
    lengths: list[int]  #: -1: there is no such frame
    crcs: list[int]  #: CRC-32C of the frames; -1: not known


_NUMBERS = len(Sample._fields) - 3


class SamplePlan(Plan):
    """Which bytes of which files make up samples; the columns are the fields of `Sample`.

    Behind the numbers stand the offsets of all frames of a sample, their lengths, their checksums.
    """

    __slots__ = ()

    source = Column(2)
    shard = Column(3)
    record = Column(4)
    episode = Column(5)
    steps = Column(6)
    start = Column(7)
    action = Column(8)
    state = Column(9)
    text = Column(10)
    text_size = Column(11)

    @staticmethod
    def empty(samples: int, frames: int) -> SamplePlan:
        """A plan with every number still -1."""
        return SamplePlan(np.full((samples, _NUMBERS + 3 * frames), -1, np.int64))

    @property
    def offsets(self) -> Ints:
        """Where the frames lie in their files: [samples, frames]."""
        return self._block(0)

    @property
    def lengths(self) -> Ints:
        """Bytes of the frames: [samples, frames]."""
        return self._block(1)

    @property
    def crcs(self) -> Ints:
        """CRC-32C of the frames: [samples, frames]."""
        return self._block(2)

    def _block(self, number: int) -> Ints:
        frames = (self.matrix.shape[1] - _NUMBERS) // 3
        return self.matrix[:, _NUMBERS + number * frames : _NUMBERS + (number + 1) * frames]

    def samples(self) -> list[Sample]:
        """The rows one by one."""
        frames = (self.matrix.shape[1] - _NUMBERS) // 3
        second, third = _NUMBERS + frames, _NUMBERS + 2 * frames
        return [
            Sample._make(
                (*line[:_NUMBERS], line[_NUMBERS:second], line[second:third], line[third:])
            )
            for line in self.matrix.tolist()
        ]

    def replaced(self, first: int, other: SamplePlan) -> SamplePlan:
        """The rows from `first` on, with `other` in the place of the first of them."""
        return SamplePlan(np.concatenate([other.matrix, self.matrix[first + 1 :]]))


@dataclass(eq=False)
class PendingBatch:
    """A batch while it is filled: what does not fit into arrays."""

    draws: Ints
    planner: Planner  #: which planned it, and can find other samples
    language: list[str] = field(init=False)
    robot: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.language = [""] * len(self.draws)
        self.robot = [""] * len(self.draws)


class SampleTask(NamedTuple):
    """Samples for one worker."""

    batch: PendingBatch
    plan: SamplePlan


class Order(Protocol):
    """Which samples draws are: of training, or of validation."""

    def draw(self, numbers: Any, /) -> Draws:
        """The draws with these numbers."""

    def replacement(self, number: int, attempt: int, /) -> Draws:
        """What to take where a draw cannot be had."""


class Planner:
    """Turns draws into tasks."""

    def __init__(
        self,
        sources: Sequence[OpenedSource],
        episodes: Sequence[Ints],
        options: LoaderOptions,
        order: Order,
        threads: int = 1,
    ) -> None:
        self._sources = sources
        self._episodes = episodes  # of each source, in the order that draws number them
        self._full = options.metadata == "full"
        # Several batches are on their way at once, so a batch need not have a task for each thread.
        share = 2 * options.batch_size // threads
        self._task = min(_TASK_SAMPLES, max(_FEWEST_SAMPLES, share))
        self._order = order
        self._frames = len(sources[0].offsets)
        self._first_rows = [np.array(source.catalog.first_rows) for source in sources]

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[PendingBatch, list[SampleTask]]]:
        """Several batches and their tasks, given their draw numbers."""
        draws = self._order.draw(np.concatenate(numbers))
        rows = np.concatenate([np.arange(len(batch)) for batch in numbers])
        plan = self.plan(draws, rows)
        planned, first = [], 0
        for batch in numbers:
            pending = PendingBatch(batch, self)
            mine = plan[first : first + len(batch)]
            planned.append((pending, [SampleTask(pending, group) for group in self._grouped(mine)]))
            first += len(batch)
        return planned

    def again(self, numbers: Ints, rows: Ints) -> SamplePlan:
        """The plan of draws that were planned before, given their rows."""
        return self.plan(self._order.draw(numbers), rows)

    def replacement(self, sample: Sample, attempt: int) -> SamplePlan:
        """A plan of another sample of the same source for the same place, by rule."""
        return self.plan(self._order.replacement(sample.draw, attempt), np.array([sample.row]))

    def plan(self, draws: Draws, rows: Ints) -> SamplePlan:
        """The plan of draws, in order, given their rows in their batches."""
        plan = SamplePlan.empty(len(draws), self._frames)
        plan.row[:] = rows
        plan.draw[:] = draws.number
        plan.source[:] = draws.source
        plan.start[:] = draws.start
        for number in np.unique(draws.source).tolist():
            source = self._sources[number]
            here = np.flatnonzero(draws.source == number)
            episode = self._episodes[number][draws.episode[here]]
            start = draws.start[here]
            steps = start[:, None] + np.array(source.offsets)
            places = source.catalog.places(episode, steps, source.camera.key)
            shard, plan.offsets[here], plan.lengths[here], plan.crcs[here] = places
            plan.shard[here] = shard
            plan.record[here] = episode - self._first_rows[number][shard]
            plan.episode[here] = episode
            plan.steps[here] = source.steps(episode)
            if self._full:
                if source.action:
                    plan.action[here] = source.action.offsets(episode, start)
                if source.state:
                    plan.state[here] = source.state.offsets(episode, start)
                if source.language:
                    plan.text[here], plan.text_size[here] = source.language.spans(episode)
        return plan

    def _grouped(self, plan: SamplePlan) -> list[SamplePlan]:
        """Neighbouring samples of about equal work together."""
        work = plan.lengths.sum(axis=1).tolist()
        groups, first, size = [], 0, 0
        for number, more in enumerate(work, 1):
            size += more
            if size >= _TASK_BYTES or number - first == self._task:
                groups.append(plan[first:number])
                first, size = number, 0
        if first < len(plan):
            groups.append(plan[first:])
        return groups
