"""What a backend of a benchmark is, and what those that wrap another framework have in common."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import psutil

from headrace.config.typed import nearest
from headrace.engine.statistics import Span
from headrace.errors import UsageError
from headrace.loader import Batch
from headrace.loader.sizes import requested_workers
from headrace.measure.job import Job

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class Knob:
    """An option that a search may try, by the key of its override, with the likely values first."""

    key: str
    values: tuple[Any, ...]
    #: Set together with any value but the default, where that would be refused or do nothing alone.
    along: Mapping[str, Any] = field(default_factory=dict)
    #: It does nothing unless these are set.
    needs: Mapping[str, Any] = field(default_factory=dict)
    #: Whether samples come less well shuffled: a search leaves it alone unless told otherwise.
    reorders: bool = False


class Opened(Protocol):
    """A backend at work."""

    @property
    def names(self) -> tuple[str, ...]:
        """The table of source names that batches refer to."""

    def __iter__(self) -> Iterator[Batch]:
        """Endless batches, as in the batch contract: frames uint8 [B, T, H, W, 3] and the rest.

        The time of `next` is what is measured, so a batch must be complete: numpy arrays in host
        memory, nothing left to be computed.
        """

    def figures(self) -> Mapping[str, Any]:
        """What it knows of itself, as JSON: at least `threads`, and `processes` (their ids)."""


@runtime_checkable
class Validates(Protocol):
    """An opened backend that can validate in the middle of training."""

    def validation(self, batches: int) -> Iterator[Batch]:
        """At most so many batches of the validation splits."""


@runtime_checkable
class Traces(Protocol):
    """An opened backend that can record what its workers do when."""

    def begin_trace(self, folder: Path) -> None:
        """From now on; what it records by means of its own goes to the run's folder."""

    def end_trace(self) -> Sequence[Sequence[Span]]:
        """What was recorded, by worker; none where it has written files of its own."""


@runtime_checkable
class Skips(Protocol):
    """An opened backend that can pass over damaged frames."""

    def damaged(self) -> Sequence[Any]:
        """Those that it has passed over so far, as `RunWriter.damaged` takes them."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What it took to write the data in a baseline's own format."""

    seconds: float
    bytes: int  #: on disk


@dataclass(frozen=True)
class Baseline:
    """A backend: what it needs, and how it is opened."""

    name: str
    needs: tuple[str, ...]  #: modules that it imports
    install: str  #: the command that installs them
    #: How well it shuffles, in a few words; a function where that depends on its options.
    shuffle: str | Callable[[Mapping[str, Any]], str]
    open: Callable[[Job, Path | None], AbstractContextManager[Opened]]
    #: Writes what it reads into a folder, which `open` then gets; None: it reads RLDS as it is.
    convert: Callable[[Job, Path], Conversion] | None = None
    #: Its own options (`Job.options`) with their defaults; others are an error.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Which options a search tries on a machine with so many CPUs, those of likely effect first.
    knobs: Callable[[int], tuple[Knob, ...]] = lambda _cpus: ()
    #: Sources of a job that it reads over the network, with their addresses.
    remote: Callable[[Job], Mapping[str, str]] = lambda _job: {}
    #: `UsageError` for options that contradict each other.
    check: Callable[[Mapping[str, Any]], object] = lambda _options: None

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its options with the defaults of the others; `UsageError` if it has no such option."""
        for name in options:
            if name not in self.options:
                raise UsageError(
                    f"the backend {self.name!r} has no option {name!r}",
                    remedy=f"{nearest(name, self.options)}There are {', '.join(self.options)}",
                )
        return {**self.options, **options}

    def shuffle_of(self, job: Job) -> str:
        """How well it shuffles in a job."""
        return self.shuffle if isinstance(self.shuffle, str) else self.shuffle(job.options)


def check_installed(baseline: Baseline) -> None:
    """`UsageError` with the command that installs what is missing."""
    missing = [module for module in baseline.needs if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"the backend {baseline.name!r} needs {', '.join(missing)}",
            remedy=f"Install it: {baseline.install}",
        )


def warn_remote(backend: str, remote: Mapping[str, str]) -> None:
    """Say which sources are read over the network, if any are; once in a process."""
    if remote:
        _warn_remote(backend, tuple(remote.items()))


@cache
def _warn_remote(backend: str, remote: tuple[tuple[str, str], ...]) -> None:
    where = ", ".join(dict.fromkeys(address.rsplit("/", 2)[0] for _, address in remote))
    _log.warning(
        "the backend %r reads %d of the sources over the network, from %s, because they have no "
        "local copy: %s (%s.source=local refuses that)",
        backend,
        len(remote),
        where,
        ", ".join(name for name, _ in remote),
        backend,
    )


def job_workers(job: Job) -> int:
    """Threads or processes that a backend may use: as the job says, else all allowed CPUs."""
    return requested_workers(job.loader.workers)[0]


def child_processes() -> set[int]:
    """Ids of the processes that this one has started and that still run.

    Without Python's resource tracker, which is started once and stays as long as the interpreter.
    """
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            if not any("resource_tracker" in part for part in child.cmdline()):
                found.add(child.pid)
    return found


class Delivery:
    """A framework's iterator as an opened backend.

    `start` begins an endless iteration over dicts with the fields of a `Batch`. It is called at the
    first batch, and the iterator is released when the delivery is closed.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        start: Callable[[], Iterator[dict[str, Any]]],
        **figures: Any,
    ) -> None:
        self.names = names
        self._start = start
        self._figures = figures
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._closed = False
        self._drawn = 0
        self._before = child_processes()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        if self._iterator is None:
            self._iterator = self._start()
        fields = next(self._iterator)
        count = len(fields["frames"])
        # Where a backend does not number its draws, they are numbered as they come.
        draws = fields.pop("draws", None)
        if draws is None:
            draws = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        return Batch(names=self.names, draws=draws, **fields)

    def figures(self) -> Mapping[str, Any]:
        """Its settings, and the processes that work for it now."""
        return {**self._figures, "processes": sorted(child_processes() - self._before)}

    def close(self) -> None:
        """End the iteration, and with it the workers."""
        self._closed = True
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
        del iterator
        gc.collect()  # worker processes end with their iterator, which may be in a cycle
