"""What a run says, on the terminal and in train.log."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

__all__ = ["said_and_kept"]

_LOGGERS = ("headrace", "lightning.pytorch", "lightning.fabric", "py.warnings")


class _Both(io.TextIOBase):
    """A stream whose text also goes to a file."""

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        self._kept.flush()
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return self._shown.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding

    def fileno(self) -> int:
        return self._shown.fileno()


@contextmanager
def said_and_kept(log: Path | None) -> Iterator[None]:
    """Within, what is printed is also in the log; warnings and Lightning's remarks are only there.

    Without a log (on a rank that is not the first) those are nowhere.
    """
    logging.captureWarnings(True)
    handler: logging.Handler = logging.NullHandler()
    if log is not None:
        handler = logging.FileHandler(log)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(each, each.propagate, each.handlers) for each in loggers]
    for each in loggers:
        if each.name != "headrace":  # what we have to say is for the terminal too
            each.handlers, each.propagate = [], False
        each.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            if log is None:
                yield
                return
            with log.open("a") as kept, redirect_stdout(_Both(sys.stdout, kept)):
                yield
    finally:
        logging.captureWarnings(False)
        for each, propagate, handlers in before:
            each.removeHandler(handler)
            each.handlers, each.propagate = handlers, propagate
        handler.close()
