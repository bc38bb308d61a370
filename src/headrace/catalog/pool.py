"""Work on the shards of a dataset, in parallel processes where that pays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.catalog.progress import BuildProgress
from headrace.catalog.tasks import perform
from headrace.errors import CatalogError
from headrace.jobs import ProcessPool, WorkerLost, allowed_cpus

__all__ = ["ShardPool", "ShardTask"]

#: Below this many bytes the work is done before a worker has started (0.2 s), so none is.
IN_PROCESS_BYTES = 32 << 20
_CAUSES = {
    -7: "the shard was cut short while it was read",
    -9: "it was killed, perhaps because the machine ran out of memory",
}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A piece of work on one shard."""

    kind: str  #: name in `tasks`
    job: dict[str, Any]  #: the task's own values, with at least `folder` and `file`
    size: int  #: bytes of the shard, for order and progress


class ShardPool:
    """Up to `workers` processes (default: one a CPU), started when first needed."""

    def __init__(self, workers: int | None = None) -> None:
        self._processes = ProcessPool("headrace.catalog.worker:work", workers or allowed_cpus())

    def __repr__(self) -> str:
        return f"<ShardPool {self._processes!r}>"

    def run(
        self, title: str, tasks: list[ShardTask], progress: BuildProgress
    ) -> list[dict[str, Any]]:
        """Perform all tasks, largest first; their results in order. An error ends them all."""
        total = sum(task.size for task in tasks)
        done = [(0, 0)] * len(tasks)
        progress.begin(title, total)

        def report(number: int, done_bytes: int, steps: int) -> None:
            done[number] = (done_bytes, steps)
            progress.advance(sum(b for b, _ in done), sum(s for _, s in done))

        results: list[dict[str, Any]] = [{} for _ in tasks]
        if total <= IN_PROCESS_BYTES:
            for n, task in enumerate(tasks):
                results[n] = perform(task.kind, task.job, partial(report, n), mapped=False)
            return results

        order = sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
        jobs = [[tasks[number].kind, tasks[number].job] for number in order]
        try:
            for place, result in self._processes.run(
                jobs, lambda place, state: report(order[place], *state)
            ):
                number = order[place]
                results[number] = result
                report(number, tasks[number].size, result["steps"])
        except WorkerLost as lost:
            job = tasks[order[lost.job]].job
            raise CatalogError(
                f"{lost}: {_CAUSES.get(lost.exit_code, 'its own message stands above')}",
                file=str(Path(job["folder"], job["file"])),
                remedy="Run it again: shards that were finished are kept",
            ) from None
        return results

    def close(self) -> None:
        """End the workers."""
        self._processes.close()

    def __enter__(self) -> ShardPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
