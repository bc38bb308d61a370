"""From draw numbers to tasks: which bytes of which files make up a batch.

Planning is vectorised over many batches at once; what it leaves for the threads is a line of plain
numbers a sample, in a table whose lines can be cut, sent to another process and read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loader.opened import OpenedSource
from headrace.loader.options import LoaderOptions
from headrace.sampling.sampler import Draws

__all__ = ["Draft", "Planner", "Sample", "Task", "column", "read_lines"]

#: A task costs 100 us beside its samples, and what follows a decode finds cold caches: large tasks
#: are cheaper. Each also takes Python's lock from the training step twice: with tasks of half this
#: size a step bound by Python was 19% slower than over a batch that is there, with these 3%
#: (benchmarks/results/laq_h200_2026-11-15.md). This is about 40 ms of decoding.
_TASK_BYTES = 2 << 20
_TASK_SAMPLES = 32
_FEWEST_SAMPLES = 8

Ints = NDArray[np.int64]


class Sample(NamedTuple):
    """One sample for the threads: a line of a table, with the last two fields as lists."""

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


_NUMBERS = len(Sample._fields) - 2
_COLUMN = {name: number for number, name in enumerate(Sample._fields)}


def column(lines: Ints, name: str) -> Ints:
    """One field of all lines."""
    return lines[:, _COLUMN[name]]


def read_lines(lines: Ints) -> list[Sample]:
    """The samples of some lines."""
    middle = (_NUMBERS + lines.shape[1]) // 2
    return [
        Sample._make((*line[:_NUMBERS], line[_NUMBERS:middle], line[middle:]))
        for line in lines.tolist()
    ]


@dataclass(eq=False)
class Draft:
    """A batch while it is filled: what does not fit into arrays."""

    draws: Ints
    planner: Planner  #: who planned it, and can find other samples
    language: list[str] = field(init=False)
    robot: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.language = [""] * len(self.draws)
        self.robot = [""] * len(self.draws)


class Task(NamedTuple):
    """Samples for one thread."""

    draft: Draft
    lines: Ints


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

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[Draft, list[Task]]]:
        """Drafts and tasks of several batches, given their draw numbers."""
        draws = self._order.draw(np.concatenate(numbers))
        rows = np.concatenate([np.arange(len(batch)) for batch in numbers])
        lines = self.lines(draws, rows)
        planned, first = [], 0
        for batch in numbers:
            draft = Draft(batch, self)
            mine = lines[first : first + len(batch)]
            planned.append((draft, [Task(draft, group) for group in self._grouped(mine)]))
            first += len(batch)
        return planned

    def again(self, numbers: Ints, rows: Ints) -> Ints:
        """The lines of draws that were planned before, given their rows."""
        return self.lines(self._order.draw(numbers), rows)

    def replacement(self, sample: Sample, attempt: int) -> Ints:
        """A line with another sample of the same source for the same place, by rule."""
        return self.lines(self._order.replacement(sample.draw, attempt), np.array([sample.row]))

    def lines(self, draws: Draws, rows: Ints) -> Ints:
        """One line a draw, in order, given its row in its batch."""
        lines = np.full((len(draws), _NUMBERS + 2 * self._frames), -1, np.int64)
        offsets, lengths = lines[:, _NUMBERS : -self._frames], lines[:, -self._frames :]
        column(lines, "row")[:] = rows
        column(lines, "draw")[:] = draws.number
        column(lines, "source")[:] = draws.source
        column(lines, "start")[:] = draws.start
        for number in np.unique(draws.source).tolist():
            source = self._sources[number]
            here = np.flatnonzero(draws.source == number)
            episode = self._episodes[number][draws.episode[here]]
            start = draws.start[here]
            steps = start[:, None] + np.array(source.offsets)
            shard, offsets[here], lengths[here] = source.catalog.places(
                episode, steps, source.camera.key
            )
            column(lines, "shard")[here] = shard
            column(lines, "record")[here] = episode - self._first_rows[number][shard]
            column(lines, "episode")[here] = episode
            column(lines, "steps")[here] = source.steps(episode)
            if self._full:
                if source.action:
                    column(lines, "action")[here] = source.action.offsets(episode, start)
                if source.state:
                    column(lines, "state")[here] = source.state.offsets(episode, start)
                if source.language:
                    text, size = source.language.spans(episode)
                    column(lines, "text")[here], column(lines, "text_size")[here] = text, size
        return lines

    def _grouped(self, lines: Ints) -> list[Ints]:
        """Neighbouring lines of about equal work together."""
        work = lines[:, -self._frames :].sum(axis=1).tolist()
        groups, first, size = [], 0, 0
        for number, more in enumerate(work, 1):
            size += more
            if size >= _TASK_BYTES or number - first == self._task:
                groups.append(lines[first:number])
                first, size = number, 0
        if first < len(lines):
            groups.append(lines[first:])
        return groups
