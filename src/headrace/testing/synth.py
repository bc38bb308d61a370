"""Write the datasets of a preset: `synthesize`.

    for made in synthesize("data", only=["bridge"], episodes=4):
        print(made.name, made.episodes, made.path)

The same seed gives the same bytes whatever the number of workers. A dataset appears when it is
complete; what an interrupted run leaves is hidden, and the next run removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import cv2

from headrace.config.typed import nearest
from headrace.engine.machine import allowed_cpus
from headrace.errors import DatasetError, HeadraceError, UnknownDatasetError, UsageError
from headrace.jobs import ProcessPool, WorkerLost
from headrace.testing import features as f
from headrace.testing import odd, oxe29
from headrace.testing.writer import (
    ShardReport,
    Values,
    shard_name,
    staged,
    write_metadata,
    write_shard,
)

__all__ = ["Progress", "Synthesized", "SyntheticDataset", "synthesize"]


class SyntheticDataset(Protocol):
    """A dataset that can be written, and whose every value is known without reading it back."""

    @property
    def name(self) -> str:
        """Short name; the registry's where there is one."""

    @property
    def dir(self) -> str:
        """Folder below the root, which is also the name in the shards."""

    @property
    def version(self) -> str:
        """Folder of the version."""

    @property
    def features(self) -> f.FeaturesDict:
        """The schema of an episode."""

    @property
    def dialect(self) -> f.Dialect:
        """How `features.json` is written."""

    def splits(self, episodes: int) -> dict[str, list[list[int]]]:
        """For every split the shards, for every shard the numbers of its episodes in order."""

    def steps(self, seed: int, episode: int, max_steps: int | None = None) -> int:
        """The length of an episode."""

    def episode(self, seed: int, episode: int, max_steps: int | None = None) -> Values:
        """All values of an episode, as they are handed to the writer (see `writer`)."""


#: Every preset: its datasets by name.
PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "oxe29": oxe29.datasets,
    "plain": oxe29.plain_datasets,
    "odd": odd.datasets,
}
#: Called with the frames done so far, all frames, and the dataset being written.
Progress: TypeAlias = Callable[[int, int, str], None]

_MODULE = "headrace.testing.synth"  # in dataset_info.json: this folder may be replaced


@dataclass(frozen=True, slots=True)
class Synthesized:
    """A dataset that was written."""

    name: str
    path: Path
    episodes: int
    steps: int
    frames: int  #: images, depth included
    bytes: int  #: of all files


@dataclass
class _Writing:
    """A dataset under way: its hidden folder and the shards that are done."""

    dataset: SyntheticDataset
    target: Path
    folder: Path
    missing: int
    close: Callable[[], None]
    shards: dict[str, dict[int, _Result]]


def synthesize(
    root: str | os.PathLike[str],
    preset: str = "oxe29",
    episodes: int = 8,
    seed: int = 0,
    only: Iterable[str] | None = None,
    workers: int | None = None,
    report: Progress | None = None,
    *,
    _max_steps: int | None = None,
) -> list[Synthesized]:
    """Write a preset's datasets below `root`; what was written.

    `episodes` counts the training episodes of a dataset (the preset `odd` has its own numbers),
    `only` names some of the datasets by short name or folder, and `workers` defaults to the
    processors this process may use. A dataset that is already there is replaced if it was
    synthesized, and is otherwise an error.
    """
    chosen = _choose(preset, only)
    if episodes < 1:
        raise UsageError(f"episodes is {episodes}", remedy="Give at least 1")
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}", remedy="Give at least 1")
    targets = {name: Path(root) / made.dir / made.version for name, made in chosen.items()}
    for target in targets.values():
        _check_replaceable(target)

    with contextlib.ExitStack() as open_datasets:
        writing: dict[str, _Writing] = {}
        jobs: list[_Job] = []
        for name, dataset in chosen.items():
            stage = open_datasets.enter_context(contextlib.ExitStack())
            folder = stage.enter_context(staged(targets[name]))
            own = _plan_shards(preset, dataset, folder, episodes, seed, _max_steps)
            shards: dict[str, dict[int, _Result]] = {job.split: {} for job in own}
            writing[name] = _Writing(dataset, targets[name], folder, len(own), stage.close, shards)
            jobs += own
        # Largest first, so that the workers finish together.
        jobs.sort(key=lambda job: job.pixels, reverse=True)
        total, done = sum(job.frames for job in jobs), 0
        made: dict[str, Synthesized] = {}

        def progress(job: _Job, frames: int) -> None:
            nonlocal done
            done += frames
            if report is not None:
                report(done, total, job.dataset)

        count = workers if workers is not None else allowed_cpus()
        with contextlib.closing(_run_jobs(jobs, count, progress)) as results:
            for job, result in results:
                under_way = writing[job.dataset]
                under_way.shards[job.split][job.shard] = result
                under_way.missing -= 1
                if not under_way.missing:
                    made[job.dataset] = _finish(under_way, preset, seed)
    return [made[name] for name in chosen]


def _choose(preset: str, only: Iterable[str] | None) -> dict[str, SyntheticDataset]:
    if preset not in PRESETS:
        known = f"Known: {', '.join(PRESETS)}"
        raise UsageError(f"unknown preset {preset!r}", remedy=nearest(preset, PRESETS) + known)
    datasets = PRESETS[preset]()
    if only is None:
        return datasets
    names = {made.dir: name for name, made in datasets.items()} | {name: name for name in datasets}
    wanted = [only] if isinstance(only, str) else list(only)
    if not wanted:
        raise UsageError("only is empty", remedy=f"Name some of: {', '.join(datasets)}")
    for name in wanted:
        if name not in names:
            raise UnknownDatasetError(
                f"{name!r} is not in the preset {preset!r}",
                remedy=nearest(name, names) + f"It has: {', '.join(datasets)}",
            )
    picked = {names[name] for name in wanted}
    return {name: made for name, made in datasets.items() if name in picked}


def _check_replaceable(target: Path) -> None:
    """Only what was synthesized is ever replaced."""
    if not target.exists():
        return
    try:
        info = json.loads((target / "dataset_info.json").read_text("utf-8"))
    except (OSError, ValueError):
        info = None
    if not isinstance(info, dict) or info.get("moduleName") != _MODULE:
        raise DatasetError(
            "the folder exists and was not synthesized",
            file=str(target),
            remedy="Choose another folder, or move this one away",
        )


def _finish(writing: _Writing, preset: str, seed: int) -> Synthesized:
    """Write the metadata and let the dataset appear."""
    dataset, shards = writing.dataset, writing.shards
    write_metadata(
        writing.folder,
        dataset.features,
        {
            split: [ShardReport(done[i].records, done[i].bytes) for i in sorted(done)]
            for split, done in shards.items()
        },
        name=dataset.dir,
        version=dataset.version,
        description=f"Synthetic: preset {preset}, seed {seed}.",
        module=_MODULE,
        dialect=dataset.dialect,
    )
    size = sum(file.stat().st_size for file in writing.folder.iterdir())
    writing.close()
    results = [result for done in shards.values() for result in done.values()]
    return Synthesized(
        name=dataset.name,
        path=writing.target,
        episodes=sum(result.records for result in results),
        steps=sum(result.steps for result in results),
        frames=sum(result.frames for result in results),
        bytes=size,
    )


# -- shards: the work, in this process or in others ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """One shard to write, as values that JSON can hold."""

    preset: str
    dataset: str
    split: str
    shard: int
    of: int
    episodes: list[int]
    seed: int
    max_steps: int | None
    folder: str  #: where the shard goes
    frames: int  #: images in it, depth included
    pixels: int  #: of all of them: a measure of the work


@dataclass(frozen=True, slots=True)
class _Result:
    """What a job wrote."""

    records: int
    bytes: int
    steps: int
    frames: int


def _frames_of(dataset: SyntheticDataset) -> tuple[int, int]:
    """Images of a step and their pixels; those of PNG and depth weigh more, as they cost more."""
    images = [image for _, image in f.image_features(dataset.features["steps"])]
    pixels = 0
    for image in images:
        height, width = (size or 64 for size in image.shape[:2])
        cheap = image.dtype == "uint8" and image.encoding_format != "png"
        pixels += height * width * (1 if cheap else 6)
    return len(images), pixels


def _plan_shards(
    preset: str,
    dataset: SyntheticDataset,
    folder: Path,
    episodes: int,
    seed: int,
    max_steps: int | None,
) -> list[_Job]:
    """One job for every shard of a dataset."""
    images, pixels = _frames_of(dataset)
    jobs = []
    for split, shards in dataset.splits(episodes).items():
        for index, numbers in enumerate(shards):
            steps = sum(dataset.steps(seed, number, max_steps) for number in numbers)
            jobs.append(
                _Job(
                    preset=preset,
                    dataset=dataset.name,
                    split=split,
                    shard=index,
                    of=len(shards),
                    episodes=numbers,
                    seed=seed,
                    max_steps=max_steps,
                    folder=str(folder),
                    frames=images * steps,
                    pixels=pixels * steps,
                )
            )
    return jobs


def _write_job(job: _Job, report: Callable[[int], None]) -> _Result:
    """Write the shard of a job; `report` is called with the frames of each episode."""
    dataset: SyntheticDataset = PRESETS[job.preset]()[job.dataset]
    images, _ = _frames_of(dataset)
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
    return _Result(shard.records, shard.bytes, steps, images * steps)


_FEW_FRAMES = 400  # done here in less time than it takes to start a worker


def _run_jobs(
    jobs: list[_Job], workers: int, progress: Callable[[_Job, int], None]
) -> Generator[tuple[_Job, _Result], None, None]:
    """Do all jobs in the given order and yield each as it is done.

    `progress` is called with a job and the frames it has just written.
    """
    if min(workers, len(jobs)) < 2 or sum(job.frames for job in jobs) < _FEW_FRAMES:
        for job in jobs:
            yield job, _write_job(job, partial(progress, job))
        return
    with ProcessPool(f"{__name__}:work", workers) as pool:
        try:
            for number, result in pool.run(
                [asdict(job) for job in jobs],
                lambda number, frames: progress(jobs[number], frames),
            ):
                yield jobs[number], _Result(**result)
        except WorkerLost as lost:
            raise HeadraceError(
                str(lost),
                dataset=jobs[lost.job].dataset,
                remedy="If memory ran out, use workers=1",
            ) from None


def work(job: dict[str, Any], report: Callable[[Any], None]) -> dict[str, Any]:
    """What a worker process does for each job."""
    cv2.setNumThreads(1)  # the workers are the parallelism
    return asdict(_write_job(_Job(**job), report))
