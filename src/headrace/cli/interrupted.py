"""Long commands that are ended: they keep what they have, and say how to go on."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["say_how_to_continue", "terminated_is_interrupted"]


@contextlib.contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """A job that a cluster ends (SIGTERM) keeps what was finished, as after Ctrl-C."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_how_to_continue() -> None:
    """The command that was given goes on where it was; one that forgets first does not."""
    words = ["headrace", *(each for each in sys.argv[1:] if each != "--again")]
    print(f"interrupted; to continue: {shlex.join(words)}", file=sys.stderr)
