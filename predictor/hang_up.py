"""The client that hangs up while nothing is read from its connection.

While an answer is made and a pipelined request waits behind it, uvicorn stops reading, and with that the end of the
connection is not heard: a generation whose client has gone would run to its end.
"""

from __future__ import annotations

import asyncio
import select

POLL_SECONDS = 1.0
_EVENTS = getattr(select, "POLLRDHUP", 0)
"""That the peer has closed, whatever it sent before is unread: Linux tells. Errors are told without being asked for."""


class HangUpWatch:
    """Aborts a transport whose peer hangs up while reading from it is paused. One a connection.

    A peer that only ends its sending counts as gone, as where that is read; by TLS' close_notify alone, without an end
    of the connection beneath, it does not. Leans on nothing but asyncio's transports.
    """

    __slots__ = ("_loop", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watches for as long as reading is paused; does nothing where it is not, and where this watches already."""
        if self._timer is None and self._is_paused:
            self._timer = self._loop.call_later(POLL_SECONDS, self._look)

    @property
    def _is_paused(self) -> bool:
        return not (self._transport.is_closing() or self._transport.is_reading())

    def _look(self) -> None:
        self._timer = None
        if not self._is_paused:
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _EVENTS)
        if poll.poll(0):
            self._transport.abort()
        else:
            self.begin()
