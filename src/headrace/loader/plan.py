"""From draw numbers to tasks: which bytes of which files make up a batch.

Planning is vectorised over many batches at once; what it leaves for the threads is a short tuple
of plain numbers a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loader.opened import OpenedSource
from headrace.sampling.sampler import Draws

__all__ = ["Draft", "Planner", "Sample", "Task"]

_TASK_BYTES = 256 << 10  # about 5 ms of decoding: long against the 10 us that a task costs
_TASK_SAMPLES = 8

Ints = NDArray[np.int64]


class Sample(NamedTuple):
    """One sample for the threads."""

    row: int  #: its place in the batch
    draw: int
    source: int
    shard: int
    record: int  #: number of the episode in its shard
    episode: int  #: number of the episode in its catalog
    steps: int  #: of the episode
    start: int
    offsets: list[int]  #: of the frames in the file
    lengths: list[int]
    action: int  #: offset in the file; -1: ask the catalog
    state: int
    text: int
    text_size: int


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
    samples: list[Sample]


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
        metadata: str,
        order: Order,
    ) -> None:
        self._sources = sources
        self._episodes = episodes  # of each source, in the order that draws number them
        self._full = metadata == "full"
        self._order = order
        self._frames = len(sources[0].offsets)
        self._first_rows = [np.array(source.catalog.first_rows) for source in sources]

    def batches(self, numbers: Sequence[Ints]) -> list[tuple[Draft, list[Task]]]:
        """Drafts and tasks of several batches, given their draw numbers."""
        draws = self._order.draw(np.concatenate(numbers))
        samples = self.samples(draws)
        planned, first = [], 0
        for batch in numbers:
            size = len(batch)
            draft = Draft(batch, self)
            mine = [
                sample._replace(row=row) for row, sample in enumerate(samples[first : first + size])
            ]
            planned.append((draft, [Task(draft, group) for group in _grouped(mine)]))
            first += size
        return planned

    def replacement(self, sample: Sample, attempt: int) -> Sample:
        """Another sample of the same source for the same place, by rule."""
        (other,) = self.samples(self._order.replacement(sample.draw, attempt))
        return other._replace(row=sample.row)

    def samples(self, draws: Draws) -> list[Sample]:
        """One sample a draw, in order; rows are those in `draws`."""
        count = len(draws)
        offsets = np.zeros((count, self._frames), np.int64)
        lengths = np.zeros((count, self._frames), np.int64)
        columns = {
            name: np.full(count, -1, np.int64)
            for name in ("shard", "record", "episode", "steps", "action", "state", "text", "size")
        }
        for number in np.unique(draws.source).tolist():
            source = self._sources[number]
            here = np.flatnonzero(draws.source == number)
            episode = self._episodes[number][draws.episode[here]]
            start = draws.start[here]
            steps = start[:, None] + np.array(source.offsets)
            shard, offsets[here], lengths[here] = source.catalog.places(
                episode, steps, source.camera.key
            )
            columns["shard"][here] = shard
            columns["record"][here] = episode - self._first_rows[number][shard]
            columns["episode"][here] = episode
            columns["steps"][here] = source.steps[episode]
            if self._full:
                if source.action:
                    columns["action"][here] = source.action.offsets(episode, start)
                if source.state:
                    columns["state"][here] = source.state.offsets(episode, start)
                if source.language:
                    text, size = source.language.spans(episode)
                    columns["text"][here], columns["size"][here] = text, size
        return list(
            map(
                Sample,
                range(count),
                draws.number.tolist(),
                draws.source.tolist(),
                columns["shard"].tolist(),
                columns["record"].tolist(),
                columns["episode"].tolist(),
                columns["steps"].tolist(),
                draws.start.tolist(),
                offsets.tolist(),
                lengths.tolist(),
                columns["action"].tolist(),
                columns["state"].tolist(),
                columns["text"].tolist(),
                columns["size"].tolist(),
            )
        )


def _grouped(samples: list[Sample]) -> list[list[Sample]]:
    """Neighbouring samples of about equal work together."""
    groups: list[list[Sample]] = []
    group: list[Sample] = []
    size = 0
    for sample in samples:
        group.append(sample)
        size += sum(sample.lengths)
        if size >= _TASK_BYTES or len(group) == _TASK_SAMPLES:
            groups.append(group)
            group, size = [], 0
    if group:
        groups.append(group)
    return groups
