"""The samples of a job for backends that read the catalogs: which there are, and reading them.

They are resolved and read by the code of the native loader (`loader.samples`). What differs between
these backends is then the loader around that: who decides on the order, who calls, and how a batch
comes back.
"""

from __future__ import annotations

from headrace.loader.samples import NO_LIMIT, MixtureSamples
from headrace.loader.settings import Settings
from headrace.measure.job import Job

__all__ = ["Samples", "job_threads"]


def job_threads(job: Job) -> int:
    """Threads or processes that a backend may use: as the job says, else all allowed CPUs."""
    return settings_of(job).threads


def settings_of(job: Job) -> Settings:
    """A job as the native loader's settings."""
    return Settings.checked(
        batch_size=job.batch_size,
        image_size=job.image_size,
        seed=job.seed,
        frames="endpoints",
        metadata=job.metadata,
        action_chunk=None,
        threads=job.threads,
        processes=False,
        budget=NO_LIMIT,
        keep_free=0,
        resize="bilinear",
        on_error="raise",
        max_errors=0,
        rank=0,
        world=1,
    )


class Samples(MixtureSamples):
    """All samples of a job's mixture."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.mixture, settings_of(job))
