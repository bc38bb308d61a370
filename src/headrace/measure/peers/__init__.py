"""Backends that a benchmark can run, one file each: headrace itself and its rivals.

Each file has one `PEER` and imports its framework only when it is opened.
"""

from __future__ import annotations

from importlib import import_module

from headrace.config.values import nearest
from headrace.errors import UsageError
from headrace.measure.peers.peer import Peer

__all__ = ["PEERS", "find_peer"]

#: Name to module below this one.
PEERS = {
    "headrace": "native",
    "tfdata": "tfdata",
}


def find_peer(name: str) -> Peer:
    """A backend by its name."""
    if name not in PEERS:
        raise UsageError(
            f"there is no backend {name!r}",
            remedy=f"{nearest(name, PEERS)}There are {', '.join(PEERS)}",
        )
    peer: Peer = import_module(f"headrace.measure.peers.{PEERS[name]}").PEER
    return peer
