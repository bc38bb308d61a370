"""Write the datasets of a preset: `synthesize`.

    for made in synthesize("data", only=["bridge"], episodes=4):
        print(made.name, made.episodes, made.path)

The same seed gives the same bytes whatever the number of workers. A dataset appears when it is
complete; what an interrupted run leaves is hidden, and the next run sweeps it away.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.errors import DatasetError, UnknownDatasetError, UsageError
from headrace.jobs import allowed_cpus
from headrace.testing.dataset import SyntheticDataset
from headrace.testing.shards import PRESETS, ShardJob, ShardResult, plan_shards
from headrace.testing.synth_pool import run_jobs
from headrace.testing.writer import staged, write_metadata

__all__ = ["Progress", "Synthesized", "synthesize"]

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
    shards: dict[str, dict[int, ShardResult]]


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
    """Write a preset's datasets below `root` and say what was written.

    `episodes` counts the training episodes of a dataset (the preset `odd` has its own numbers),
    `only` names some of the datasets by short name or folder, and `workers` defaults to the
    processors this process may use. A dataset that is already there is replaced if it was
    synthesized, and is otherwise an error.
    """
    chosen = _choose(preset, only)
    if episodes < 1:
        raise UsageError(f"{episodes} episodes", remedy="Ask for at least one")
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers", remedy="Ask for at least one")
    targets = {name: Path(root) / made.dir / made.version for name, made in chosen.items()}
    for target in targets.values():
        _check_replaceable(target)

    with contextlib.ExitStack() as open_datasets:
        writing: dict[str, _Writing] = {}
        jobs: list[ShardJob] = []
        for name, dataset in chosen.items():
            stage = open_datasets.enter_context(contextlib.ExitStack())
            folder = stage.enter_context(staged(targets[name]))
            own = plan_shards(preset, dataset, folder, episodes, seed, _max_steps)
            shards: dict[str, dict[int, ShardResult]] = {job.split: {} for job in own}
            writing[name] = _Writing(dataset, targets[name], folder, len(own), stage.close, shards)
            jobs += own
        # Largest first, so that the workers finish together.
        jobs.sort(key=lambda job: job.pixels, reverse=True)
        total, done = sum(job.frames for job in jobs), 0
        made: dict[str, Synthesized] = {}

        def progress(job: ShardJob, frames: int) -> None:
            nonlocal done
            done += frames
            if report is not None:
                report(done, total, job.dataset)

        count = workers if workers is not None else allowed_cpus()
        with contextlib.closing(run_jobs(jobs, count, progress)) as results:
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
        raise UsageError(f"no preset {preset!r}", remedy=_nearest(preset, PRESETS) + known)
    datasets = PRESETS[preset]()
    if only is None:
        return datasets
    names = {made.dir: name for name, made in datasets.items()} | {name: name for name in datasets}
    wanted = [only] if isinstance(only, str) else list(only)
    if not wanted:
        raise UsageError("no dataset was named", remedy=f"It has: {', '.join(datasets)}")
    for name in wanted:
        if name not in names:
            raise UnknownDatasetError(
                f"{name!r} is not in the preset {preset!r}",
                remedy=_nearest(name, names) + f"It has: {', '.join(datasets)}",
            )
    picked = {names[name] for name in wanted}
    return {name: made for name, made in datasets.items() if name in picked}


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


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
        {split: [done[index].report for index in sorted(done)] for split, done in shards.items()},
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
