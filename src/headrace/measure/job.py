"""What a benchmark measures: the job that every backend gets, and how long it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.config import Mixture
from headrace.config.documents import parse_override
from headrace.config.typed import nearest, plain, typed
from headrace.errors import UsageError
from headrace.loader.options import LoaderOptions

#: `loader.` keys that every backend gets.
JOB_KEYS = ("batch_size", "image_size", "seed", "metadata", "workers")
#: `loader.` keys that only headrace's own loader has; the same as `headrace.` ones.
OWN_KEYS = ("memory", "keep_free", "on_error", "max_errors", "resize")


@dataclass(frozen=True)
class Job:
    """Batches of a mixture. Plain values, so that it can cross into a fresh process."""

    mixture: Mixture
    #: Every backend follows those of `JOB_KEYS`.
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    options: Mapping[str, Any] = field(default_factory=dict)  #: the backend's own

    def __post_init__(self) -> None:
        # The action of a sample that every backend delivers.
        object.__setattr__(self, "loader", replace(self.loader, action="sum"))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: of the loader's options `JOB_KEYS` and what differs from the default."""
        default = plain(Job(self.mixture).loader)
        loader = {
            key: value
            for key, value in plain(self.loader).items()
            if key in JOB_KEYS or value != default[key]
        }
        return {"mixture": self.mixture.to_dict(), **loader, "options": dict(self.options)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        loader = {key: value for key, value in values.items() if key not in ("mixture", "options")}
        mixture = Mixture.from_dict(values["mixture"])
        return Job(mixture, typed(LoaderOptions, loader, "loader"), values["options"])


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How long a benchmark runs and what it simulates; the same for all backends of a comparison.

    Warm-up ends after so many batches and so many seconds, whichever is later: pipelines fill their
    buffers, and worker processes take a second or two to start. 8 batches are what users of tf.data
    found to be the least; 3 s is what headrace's own processes need on two busy cores.
    """

    seconds: float | None = 20.0  #: measured after the warm-up; None: count steps
    steps: int | None = None  #: batches measured; with `seconds`, at most so long
    warmup: int = 8
    warmup_seconds: float = 3.0
    compute_ms: float = 0.0  #: a simulated training step, during which the backend can work ahead
    timeout_s: float = 900.0  #: for everything, from the start of the process
    cpus: int | None = None  #: CPUs that the process may use, held by affinity; None: all allowed
    validate_every: int = 0  #: measured batches from one validation pass to the next; 0: none
    validate_batches: int = 4  #: of a validation pass

    def __post_init__(self) -> None:
        if self.seconds is None and self.steps is None:
            raise UsageError(
                "seconds is None and steps is None", remedy="Give --seconds, --steps or both"
            )
        for name in ("seconds", "steps", "timeout_s", "cpus", "validate_batches"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} is {value}", remedy="Give a number above 0")
        for name in ("warmup", "warmup_seconds", "compute_ms", "validate_every"):
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{name} is {value}", remedy="Give a number from 0 upwards")

    def over(self, seconds: float, steps: int) -> bool:
        """Whether enough has been measured."""
        late = self.seconds is not None and seconds >= self.seconds
        return late or (self.steps is not None and steps >= self.steps)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def jobs_of(
    mixture: str | Path, overrides: Sequence[str], backends: Sequence[str]
) -> dict[str, Job]:
    """A job for each backend: the same but for the backend's own options.

    Overrides are of the mixture (`root`, `defaults.*`, `sources.NAME.*`), of the loader
    (`loader.*`), or of a backend (`tfdata.*`); the last one of a key counts.
    """
    from headrace.measure.baselines import BASELINES, find_baseline

    keys = (*JOB_KEYS, *OWN_KEYS)
    loader: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {backend: {} for backend in backends}
    rest = []
    for override in overrides:
        head, _, key = override.partition("=")[0].strip().partition(".")
        if head == "loader":
            if key not in keys:
                raise UsageError(
                    f"the loader has no option {key!r} in a benchmark",
                    remedy=f"{nearest(key, keys)}There are {', '.join(keys)}",
                )
            loader[key] = parse_override(override)[1]
        elif not key and head in keys:
            raise UsageError(f"unknown key {head}", remedy=f"Did you mean 'loader.{head}'?")
        elif head in BASELINES:
            options.setdefault(head, {})[key] = parse_override(override)[1]
        else:
            rest.append(override)
    typed(LoaderOptions, loader, "loader")  # raises where a value is not accepted
    own = {key: loader.pop(key) for key in OWN_KEYS if key in loader}
    options.setdefault("headrace", {}).update(own)
    common = typed(LoaderOptions, loader, "loader")
    loaded = Mixture.load(mixture, rest)
    for backend in backends:
        find_baseline(backend).with_defaults(options[backend])  # raises where it has no such option
    return {each: Job(loaded, common, options[each]) for each in backends}
