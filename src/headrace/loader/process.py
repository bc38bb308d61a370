"""A process that fills samples for one thread of the engine: the thread's side.

The process maps the slots' shared memory and opens the catalogs itself; what crosses is a short
message a task and a short answer. It is a plain subprocess (see `processes`), ends when its
socket does, and so is never left behind.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.statistics import Counters
from headrace.errors import DataError, HeadraceError, WorkerError
from headrace.jobs import start_python
from headrace.loader.messages import receive, send
from headrace.loader.work import Charges, Texts

__all__ = ["ProcessLost", "SampleProcess"]


class ProcessLost(Exception):
    """The process has ended."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code  #: negative: the signal
        self.cause = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(self.cause)


class SampleProcess:
    """Starts the process at once; it may be used when `ready`."""

    def __init__(self, module: str, about: int, memory: int, budget: Charges) -> None:
        """`about` and `memory` are descriptors: of what it needs to know, and of the slots."""
        self._budget = budget
        self._charged = 0
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                fds = (theirs.fileno(), about, memory)
                self._process = start_python(
                    module, *map(str, fds), pass_fds=fds, stdin=subprocess.DEVNULL
                )
        except OSError:
            self._socket.close()
            raise

    def __repr__(self) -> str:
        return f"<SampleProcess {self._process.pid}>"

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it has said anything yet, or has ended."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # ended
            return True
        return True

    def begin(self) -> None:
        """Take its word that it is ready."""
        self._receive()

    def fill(
        self,
        lines: NDArray[np.int64],
        place: int,
        texts: Texts,
        counters: Counters,
        *,
        keep: bool = False,
    ) -> tuple[int, DataError | None]:
        """As `SampleReader.fill`, into the slot at a place."""
        self._send((place, keep, lines.shape[1], lines.tobytes()))
        while (message := self._receive())[0] == "charge":
            self._send(self._charge(*message[1:]))
        if message[0] == "failed":
            raise WorkerError(
                f"a worker process failed: {message[1]}", remedy="This is a fault of headrace"
            )
        _, done, error, language, robot, worked = message
        for row, text in language.items():
            texts.language[row] = text
        for row, text in robot.items():
            texts.robot[row] = text
        counters.merge(*worked)
        if error is not None and not isinstance(error, DataError):
            raise error
        return done, error

    def kill(self) -> None:
        """End it, whatever it is doing; whoever waits for an answer gets `ProcessLost`."""
        self._process.kill()

    def close(self) -> None:
        """End it and give its memory back to the budget."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._budget.release(self._charged)
        self._charged = 0

    def _charge(self, size: int, what: str) -> HeadraceError | None:
        """What the process asks of the budget."""
        try:
            self._budget.charge(size, what)
        except HeadraceError as error:
            return error
        self._charged += size
        return None

    def _send(self, message: Any) -> None:
        try:
            send(self._socket, message)
        except OSError:
            raise ProcessLost(self._process.wait()) from None

    def _receive(self) -> Any:
        try:
            return receive(self._socket)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise ProcessLost(self._process.wait()) from None


def described(value: Any) -> int:
    """A descriptor of an unnamed file with a pickled value, for any number of processes."""
    fd = os.memfd_create("headrace-about", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    return fd
