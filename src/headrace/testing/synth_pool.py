"""Run shard jobs in worker processes, or in this one when there is little to do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeAlias

from headrace.errors import HeadraceError
from headrace.jobs import ProcessPool, WorkerLost
from headrace.testing.shards import ShardJob, ShardResult, write_job

__all__ = ["JobProgress", "run_jobs"]

#: Called with a job and the frames it has just written.
JobProgress: TypeAlias = Callable[[ShardJob, int], None]
_Done: TypeAlias = Generator[tuple[ShardJob, ShardResult], None, None]

_FEW_FRAMES = 400  # done here in less time than it takes to start a worker


def run_jobs(jobs: list[ShardJob], workers: int, progress: JobProgress) -> _Done:
    """Do all jobs in the given order and yield each as it is done."""
    if min(workers, len(jobs)) < 2 or sum(job.frames for job in jobs) < _FEW_FRAMES:
        for job in jobs:
            yield job, write_job(job, partial(progress, job))
        return
    with ProcessPool("headrace.testing.synth_worker:work", workers) as pool:
        try:
            for number, result in pool.run(
                [job.to_dict() for job in jobs],
                lambda number, frames: progress(jobs[number], frames),
            ):
                yield jobs[number], ShardResult(**result)
        except WorkerLost as lost:
            raise HeadraceError(
                str(lost),
                dataset=jobs[lost.job].dataset,
                remedy="If memory ran out, use workers=1",
            ) from None
