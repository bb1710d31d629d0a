"""TCP on loopback without races: a port that stays free, and whether a peer has read what it was sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that a server which is told of it can bind, and that the system gives to nobody else meanwhile.

    NOTE: both this socket and the server's allow the address to be reused, and this one never listens.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def is_read(connection: socket.socket) -> bool:
    """Whether the other end, a socket of this machine over IPv4, has taken all that was sent (proc(5), net/tcp)."""
    try:
        ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    except OSError:
        return True  # it has gone
    unsent, unread = _queues(ours, theirs)[0], _queues(theirs, ours)[1]
    return unsent == unread == 0


def _queues(here: int, there: int) -> tuple[int, int]:
    """Bytes that wait on the socket with these ports: to be acknowledged, and to be read."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        if [int(address.partition(":")[2], 16) for address in (local, remote)] == [here, there]:
            sending, _, receiving = queues.partition(":")
            return int(sending, 16), int(receiving, 16)
    return 0, 0
