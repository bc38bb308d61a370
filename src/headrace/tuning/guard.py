"""What ends a run before it ends the machine: a memory floor, a stall, a time limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import UsageError
from headrace.measure.isolated import GRACE_SECONDS, Look

__all__ = ["FLOOR_REACHED", "STALLED", "Guard", "check_floor"]

FLOOR_REACHED, STALLED = "floor reached", "stalled"


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits of a run; `check` is a rule for `measure.bench`.

    >>> Guard(min_available=5 << 30).check(Look(4 << 30, 0, 0, 1.0))
    ('floor reached', '4.00 GiB of memory left, under the floor of 5.00 GiB')
    """

    #: Bytes that must stay available on the machine and in its control groups. 5 GiB is what users
    #: of these mixtures settled on after the kernel had killed their sessions.
    min_available: int = 5 << 30
    #: Without a batch. TensorFlow takes 10 s to start on two cores, and minutes with remote data.
    stall_seconds: float = 120.0
    timeout_s: float = 900.0  #: for everything, from the start of the process
    grace_s: float = GRACE_SECONDS  #: from SIGTERM to SIGKILL for a run that must end

    def __post_init__(self) -> None:
        if self.min_available < 0:
            raise UsageError(
                f"guard.min_available is {self.min_available}", remedy="Give a size, as 5GiB"
            )
        for name in ("stall_seconds", "timeout_s", "grace_s"):
            if getattr(self, name) <= 0:
                raise UsageError(
                    f"guard.{name} is {getattr(self, name)}", remedy="Give seconds above 0"
                )

    def check(self, look: Look) -> tuple[str, str] | None:
        """The status and the cause if the run must end now."""
        if look.available < self.min_available:
            left, floor = _gib(look.available), _gib(self.min_available)
            return FLOOR_REACHED, f"{left} of memory left, under the floor of {floor}"
        if look.idle_s > self.stall_seconds:
            return STALLED, f"no batch for {self.stall_seconds:g} s"
        return None

    def check_memory(self, look: Look) -> tuple[str, str] | None:
        """Only the floor: for work that has no batches, as converting data."""
        reason = self.check(look)
        return reason if reason and reason[0] == FLOOR_REACHED else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def check_floor(floor: int, available: int, total: int) -> None:
    """`UsageError` for a floor under which nothing could run, before anything does."""
    if floor >= available:
        raise UsageError(
            f"guard.min_available is {_gib(floor)}, but only {_gib(available)} of the machine's "
            f"{_gib(total)} are available now: every run would be stopped at once",
            remedy="Lower guard.min_available, or end what holds the memory",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
