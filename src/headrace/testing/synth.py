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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headrace.config.typed import nearest
from headrace.engine.machine import allowed_cpus
from headrace.errors import DatasetError, HeadraceError, UnknownDatasetError, UsageError
from headrace.jobs import Perform, ProcessPool, WorkerLost
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
_FEW_FRAMES = 400  # done here in less time than it takes to start a worker


@dataclass(frozen=True, slots=True)
class Synthesized:
    """A dataset that was written."""

    name: str
    path: Path
    episodes: int
    steps: int
    frames: int  #: images, depth included
    bytes: int  #: of all files


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
    steps: int
    frames: int  #: images in it, depth included
    pixels: int  #: of all of them: a measure of the work


@dataclass
class _Writing:
    """A dataset under way: its hidden folder, its shards, and those that are done."""

    dataset: SyntheticDataset
    target: Path
    folder: Path
    close: Callable[[], None]
    jobs: list[_Job]
    done: dict[tuple[str, int], ShardReport] = field(default_factory=dict)


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
    if preset not in PRESETS:
        known = f"Known: {', '.join(PRESETS)}"
        raise UsageError(f"unknown preset {preset!r}", remedy=nearest(preset, PRESETS) + known)
    datasets: dict[str, SyntheticDataset] = PRESETS[preset]()
    folders = {made.dir: name for name, made in datasets.items()}
    chosen = choose(preset, list(datasets), only, folders)
    check_positive(episodes=episodes, workers=workers)
    targets = {name: Path(root) / datasets[name].dir / datasets[name].version for name in chosen}
    for target in targets.values():
        check_replaceable(target, _was_synthesized)

    with contextlib.ExitStack() as unfinished:
        writing: dict[str, _Writing] = {}
        for name in chosen:
            stage = unfinished.enter_context(contextlib.ExitStack())
            folder = stage.enter_context(staged(targets[name]))
            own = _plan_shards(preset, datasets[name], folder, episodes, seed, _max_steps)
            writing[name] = _Writing(datasets[name], targets[name], folder, stage.close, own)
        # Largest first, so that the workers finish together.
        jobs = sorted(
            (job for each in writing.values() for job in each.jobs),
            key=lambda job: job.pixels,
            reverse=True,
        )
        total, done = sum(job.frames for job in jobs), 0
        made: dict[str, Synthesized] = {}

        def progress(number: int, frames: int) -> None:
            nonlocal done
            done += frames
            if report is not None:
                report(done, total, jobs[number].dataset)

        plain = [asdict(job) for job in jobs]
        running = run_jobs(write_job, plain, workers, few=total < _FEW_FRAMES, progress=progress)
        with contextlib.closing(running) as results:
            for number, result in results:
                job = jobs[number]
                under_way = writing[job.dataset]
                under_way.done[job.split, job.shard] = ShardReport(**result)
                if len(under_way.done) == len(under_way.jobs):
                    made[job.dataset] = _finish(under_way, preset, seed)
    return [made[name] for name in chosen]


def _was_synthesized(target: Path) -> bool:
    info = json.loads((target / "dataset_info.json").read_text("utf-8"))
    return isinstance(info, dict) and info.get("moduleName") == _MODULE


def _finish(writing: _Writing, preset: str, seed: int) -> Synthesized:
    """Write the metadata and let the dataset appear."""
    dataset, jobs = writing.dataset, writing.jobs
    splits: dict[str, list[ShardReport]] = {job.split: [] for job in jobs}
    for job in jobs:
        splits[job.split].append(writing.done[job.split, job.shard])
    write_metadata(
        writing.folder,
        dataset.features,
        splits,
        name=dataset.dir,
        version=dataset.version,
        description=f"Synthetic: preset {preset}, seed {seed}.",
        module=_MODULE,
        dialect=dataset.dialect,
    )
    size = sum(file.stat().st_size for file in writing.folder.iterdir())
    writing.close()
    return Synthesized(
        name=dataset.name,
        path=writing.target,
        episodes=sum(len(job.episodes) for job in jobs),
        steps=sum(job.steps for job in jobs),
        frames=sum(job.frames for job in jobs),
        bytes=size,
    )


# -- shards ----------------------------------------------------------------------------------------


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
                    steps=steps,
                    frames=images * steps,
                    pixels=pixels * steps,
                )
            )
    return jobs


def write_job(values: dict[str, Any], report: Callable[[Any], None]) -> dict[str, int]:
    """Write the shard of a job; `report` is called with the frames of each episode."""
    job = _Job(**values)
    dataset: SyntheticDataset = PRESETS[job.preset]()[job.dataset]
    images, _ = _frames_of(dataset)
    path = Path(job.folder) / shard_name(dataset.dir, job.split, job.shard, job.of)

    def episodes() -> Iterator[Values]:
        for number in job.episodes:
            yield dataset.episode(job.seed, number, job.max_steps)
            report(images * dataset.steps(job.seed, number, job.max_steps))

    first = job.episodes[0] if job.episodes else 0
    return asdict(write_shard(path, dataset.features, episodes(), first))


# -- what every preset needs, those of Parquet files too -------------------------------------------


def check_positive(**numbers: int | None) -> None:
    """Refuse numbers below 1; None stands for a default."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}", remedy="Give at least 1")


def choose(
    preset: str,
    names: Iterable[str],
    only: Iterable[str] | None,
    aliases: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of a preset that are in `only`, in the preset's order; all where it is None."""
    names = list(names)
    if only is None:
        return names
    meant = {**(aliases or {}), **{name: name for name in names}}
    wanted = [only] if isinstance(only, str) else list(only)
    if not wanted:
        raise UsageError("only is empty", remedy=f"Name some of: {', '.join(names)}")
    for name in wanted:
        if name not in meant:
            raise UnknownDatasetError(
                f"{name!r} is not in the preset {preset!r}",
                remedy=nearest(name, meant) + f"It has: {', '.join(names)}",
            )
    picked = {meant[name] for name in wanted}
    return [name for name in names if name in picked]


def check_replaceable(target: Path, was_synthesized: Callable[[Path], bool]) -> None:
    """Refuse a folder that exists and was not synthesized."""
    if not target.exists():
        return
    with contextlib.suppress(OSError, ValueError):
        if was_synthesized(target):
            return
    raise DatasetError(
        "the folder exists and was not synthesized",
        file=str(target),
        remedy="Choose another folder, or move this one away",
    )


def run_jobs(
    write: Perform,
    jobs: list[dict[str, Any]],
    workers: int | None,
    *,
    few: bool,
    progress: Callable[[int, Any], None],
) -> Generator[tuple[int, Any], None, None]:
    """Do all jobs in the given order and yield (number, result) of each as it is done.

    `few`: there is so little to do that it is done in this process.
    """
    count = min(workers or allowed_cpus(), len(jobs))
    if few or count < 2:
        for number, job in enumerate(jobs):
            yield number, write(job, partial(progress, number))
        return
    with ProcessPool(f"{write.__module__}:{write.__name__}", count) as pool:
        try:
            yield from pool.run(jobs, progress)
        except WorkerLost as lost:
            raise HeadraceError(
                str(lost),
                dataset=jobs[lost.job]["dataset"],
                remedy="If memory ran out, use workers=1",
            ) from None
