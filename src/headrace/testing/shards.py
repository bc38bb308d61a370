"""The work of a synthesis in pieces: one shard each, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.testing import odd, oxe29
from headrace.testing.dataset import SyntheticDataset, image_features
from headrace.testing.wire import Values
from headrace.testing.writer import ShardReport, shard_name, write_shard

__all__ = ["PRESETS", "ShardJob", "ShardResult", "frames_of", "plan_shards", "write_job"]

#: Every preset: its datasets by name.
PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "oxe29": oxe29.datasets,
    "plain": oxe29.plain_datasets,
    "odd": odd.datasets,
}


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to write; plain values, so that it can cross a pipe."""

    preset: str
    dataset: str
    split: str
    shard: int
    of: int
    episodes: tuple[int, ...]
    seed: int
    max_steps: int | None
    folder: str  #: where the shard goes
    frames: int  #: images in it, depth included
    pixels: int  #: in all of them: a measure of the work

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ShardJob:
        """The inverse of `to_dict`."""
        return ShardJob(**{**values, "episodes": tuple(values["episodes"])})


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a job wrote."""

    records: int
    bytes: int
    steps: int
    frames: int

    @property
    def report(self) -> ShardReport:
        """As the metadata needs it."""
        return ShardReport(self.records, self.bytes)


def frames_of(dataset: SyntheticDataset) -> tuple[int, int]:
    """Images of a step and their pixels; PNG and depth count for their cost against JPEG."""
    images = [image for _, image in image_features(dataset.features["steps"])]
    pixels = 0
    for image in images:
        height, width = (size or 64 for size in image.shape[:2])
        cheap = image.dtype == "uint8" and image.encoding_format != "png"
        pixels += height * width * (1 if cheap else 6)
    return len(images), pixels


def plan_shards(
    preset: str,
    dataset: SyntheticDataset,
    folder: Path,
    episodes: int,
    seed: int,
    max_steps: int | None,
) -> list[ShardJob]:
    """One job for every shard of a dataset."""
    images, pixels = frames_of(dataset)
    jobs = []
    for split, shards in dataset.splits(episodes).items():
        for index, numbers in enumerate(shards):
            steps = sum(dataset.steps(seed, number, max_steps) for number in numbers)
            jobs.append(
                ShardJob(
                    preset=preset,
                    dataset=dataset.name,
                    split=split,
                    shard=index,
                    of=len(shards),
                    episodes=tuple(numbers),
                    seed=seed,
                    max_steps=max_steps,
                    folder=str(folder),
                    frames=images * steps,
                    pixels=pixels * steps,
                )
            )
    return jobs


def write_job(job: ShardJob, report: Callable[[int], None] = lambda _: None) -> ShardResult:
    """Write the shard of a job; `report` is told the frames of every episode."""
    dataset: SyntheticDataset = PRESETS[job.preset]()[job.dataset]
    images, _ = frames_of(dataset)
    path = Path(job.folder) / shard_name(dataset.dir, job.split, job.shard, job.of)
    steps = 0

    def made() -> Iterator[Values]:
        nonlocal steps
        for number in job.episodes:
            yield dataset.episode(job.seed, number, job.max_steps)
            length = dataset.steps(job.seed, number, job.max_steps)
            steps += length
            report(images * length)

    first = job.episodes[0] if job.episodes else 0
    shard = write_shard(path, dataset.features, made(), first)
    return ShardResult(shard.records, shard.bytes, steps, images * steps)
