"""The samples of a job for backends that read the catalogs: which there are, and reading them.

They are resolved and read by the code of the native loader (`loader.samples`). What differs between
these backends is then the loader around that: who decides on the order, who calls, and how a batch
comes back.
"""

from __future__ import annotations

from headrace.loader.options import LoaderOptions
from headrace.loader.samples import MixtureSamples
from headrace.loader.sizes import requested_workers
from headrace.measure.job import Job

__all__ = ["Samples", "job_threads", "options_of"]


def job_threads(job: Job) -> int:
    """Threads or processes that a backend may use: as the job says, else all allowed CPUs."""
    return requested_workers(job.workers)[0]


def options_of(job: Job) -> LoaderOptions:
    """A job as options of the native loader."""
    return LoaderOptions(
        batch_size=job.batch_size,
        image_size=job.image_size,
        seed=job.seed,
        metadata=job.metadata,
        workers=job.workers,
    )


class Samples(MixtureSamples):
    """All samples of a job's mixture."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.mixture, options_of(job))
