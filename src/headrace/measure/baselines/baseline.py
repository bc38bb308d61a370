"""What a backend of a benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headrace.errors import UsageError
from headrace.loader import Batch
from headrace.measure.job import Job

__all__ = [
    "Baseline",
    "Conversion",
    "Knob",
    "Opened",
    "Validates",
    "check_installed",
    "shuffle_of",
]


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
        """What it knows of itself, as JSON: at least `threads`, and `processes` (their numbers)."""


@runtime_checkable
class Validates(Protocol):
    """A backend at work that can validate in the middle of it."""

    def validation(self, batches: int) -> Iterator[Batch]:
        """At most so many batches of the validation splits."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What it took to write the data in a rival's own format."""

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
    options: Mapping[str, Any] | None = None
    #: Which options a search tries on a machine with so many CPUs, those of likely effect first.
    knobs: Callable[[int], tuple[Knob, ...]] = lambda _cpus: ()
    #: `UsageError` for options that cannot be together.
    check: Callable[[Mapping[str, Any]], object] | None = None


def shuffle_of(baseline: Baseline, job: Job) -> str:
    """How well a backend shuffles in a job."""
    return baseline.shuffle if isinstance(baseline.shuffle, str) else baseline.shuffle(job.options)


def check_installed(baseline: Baseline) -> None:
    """`UsageError` with the command that installs what is missing."""
    missing = [module for module in baseline.needs if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"the backend {baseline.name!r} needs {', '.join(missing)}",
            remedy=f"Install it: {baseline.install}",
        )
