"""Messages between a thread and its process: pickled values over a socket, one at a time.

Each side waits for the other's answer before it says more, so what arrives is one message and
never the beginning of another. Files over sockets would do, with more Python in between.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

__all__ = ["receive", "send"]

_SIZE = struct.Struct("<Q")
_AT_ONCE = 1 << 16


def send(connection: socket.socket, message: Any) -> None:
    """Send a value. Raises `OSError` if the other side is gone."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connection.sendall(_SIZE.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Wait for a value. Raises `EOFError` or `OSError` if the other side is gone."""
    data = connection.recv(_AT_ONCE)
    while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
        more = connection.recv(1 << 20)
        if not more:
            raise EOFError
        data += more
    return pickle.loads(memoryview(data)[_SIZE.size :])
