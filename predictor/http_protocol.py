"""HTTP/1.1 connections whose clients are missed when they leave, and on which `Upgrade` is ignored, as RFC 9110,
section 7.8, allows a server.

httptools ends a message at the head once it asks for an upgrade: the body is lost, and its bytes would be read as a
request of their own. curl's `--http2` and Java's HttpClient send `Upgrade: h2c` with every first request. h11 has no
such trouble and takes those connections over; the others stay with httptools, which is faster.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from predictor.hang_up import HangUpWatch
from predictor.request_context import REQUEST_ID, request_id_of

_HEAD_END = re.compile(rb"\n\r?\n")
_UPGRADE = re.compile(rb"\nupgrade[ \t]*:", re.IGNORECASE)


class PlainH11Protocol(H11Protocol):
    """uvicorn's protocol upon h11, for which a request to upgrade is like any other."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._hang_up_watch = HangUpWatch(transport, self.loop)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._hang_up_watch.begin()

    def _should_upgrade(self) -> bool:
        return False


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol upon httptools, until a request asks for an upgrade.

    Where a head shows it in the first bytes received of it, h11 serves that request and what follows. Where it shows
    later, bytes are already parsed: 400, and the connection is closed, with nothing read as a further request.
    """

    _is_between_messages = True
    _is_refused = False
    _running: RequestResponseCycle | None = None
    _hang_up_watch: HangUpWatch | None = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_idle and _asks_for_upgrade(data):
            self._hand_over(data)
        else:
            super().data_received(data)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        # NOTE: uvicorn tells the last request that was read, not the one that is answered while others wait behind it.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._is_between_messages = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._is_refused = True
            self.app = _refuse_upgrade
        super().on_headers_complete()
        if self.cycle is not self._running:
            # NOTE: it waits behind another one, and uvicorn has stopped reading.
            if self._hang_up_watch is None:
                self._hang_up_watch = HangUpWatch(self.transport, self.loop)
            self._hang_up_watch.begin()

    def on_message_complete(self) -> None:
        self._is_between_messages = True
        super().on_message_complete()

    @property
    def _is_idle(self) -> bool:
        return self._is_between_messages and (self.cycle is None or self.cycle.response_complete)

    def _hand_over(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        protocol = PlainH11Protocol(self.config, self.server_state, self.app_state, self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        protocol.data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to say: the answer tells the caller."""


def _asks_for_upgrade(data: bytes) -> bool:
    """Whether the head, or what there is of it, has a field `Upgrade`."""
    end = _HEAD_END.search(data)
    return _UPGRADE.search(data, 0, len(data) if end is None else end.end()) is not None


async def _refuse_upgrade(scope: Scope, receive: Receive, send: Send) -> None:
    text = "this server cannot switch protocols here: send the request without 'upgrade'"
    given = Headers(scope=scope).get(REQUEST_ID)
    headers = {"connection": "close", REQUEST_ID: request_id_of(given)}
    await JSONResponse({"error": text}, 400, headers)(scope, receive, send)
