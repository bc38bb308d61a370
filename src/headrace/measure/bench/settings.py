"""How long a benchmark runs, and what it simulates."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import UsageError

__all__ = ["BenchSettings"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The same for every backend of a comparison.

    Warm-up ends after so many batches and so many seconds, whichever is later: pipelines fill their
    buffers, and worker processes take a second or two to start. 8 batches are what users of tf.data
    found to be the least; 3 s is what headrace's own processes need on two busy cores.
    """

    seconds: float | None = 20.0  #: measured after the warm-up; None: count steps
    steps: int | None = None
    warmup: int = 8
    warmup_seconds: float = 3.0
    compute_ms: float = 0.0  #: a simulated training step, during which the backend can work ahead
    timeout_s: float = 900.0  #: for everything, from the start of the process
    cpus: int | None = None  #: CPUs that the process may use, held by affinity; None: all allowed
    validate_every: int = 0  #: measured batches from one validation pass to the next; 0: none
    validate_batches: int = 4  #: of a validation pass

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise UsageError(
                f"seconds is {self.seconds} and steps is {self.steps}",
                remedy="Give one of --seconds and --steps",
            )
        for name in ("seconds", "steps", "timeout_s", "cpus", "validate_batches"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} is {value}", remedy="Give a number above 0")
        for name in ("warmup", "warmup_seconds", "compute_ms", "validate_every"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"{name} is {getattr(self, name)}", remedy="Give a number from 0 upwards"
                )

    def over(self, seconds: float, steps: int) -> bool:
        """Whether enough has been measured."""
        if self.seconds is not None:
            return seconds >= self.seconds
        return self.steps is not None and steps >= self.steps

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
