"""The server's life: listener first, model behind it, drain at a signal, an end when the engine dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineDeadError, RequestAbortedError
from predictor.console import OPEN, Access, LoadingDisplay, ready_text, show

if TYPE_CHECKING:
    from engine.client import AsyncEngine
    from predictor.service import GenerationService

logger = logging.getLogger("predictor")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
DEATH_NOTICE_SECONDS = 3.0
"""How long a server whose engine has died still answers 503 before it exits."""
REFRESH_SECONDS = 0.1
MIN_GRACE_SECONDS = 5.0
"""What open responses get at least to go out."""


class HttpListener(Protocol):
    """The HTTP server's part in this."""

    async def wait_open(self) -> int:
        """The port, once it is listened to."""
        ...

    def stop(self, grace: float) -> None:
        """Takes no new connections; open responses get `grace` seconds."""
        ...


class GrpcListener(Protocol):
    """The gRPC server's part in this. port: the one bound, once started."""

    @property
    def port(self) -> int: ...
    async def start(self) -> None: ...
    async def stop(self, grace: float) -> None: ...


class Lifecycle:
    """Runs from the opening of the listeners to the exit code.

    exit_code: 0 after a drain, 1 when the engine failed. A second signal ends the process at once.
    announce: tells a person that the server is ready, and how to try it.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        service: GenerationService,
        http: HttpListener,
        grpc: GrpcListener,
        *,
        drain_timeout: float,
        access: Access = OPEN,
        death_notice: float = DEATH_NOTICE_SECONDS,
        end_now: Callable[[int], None] = os._exit,
        announce: Callable[[str], None] = show,
    ) -> None:
        self.exit_code = 0
        self._engine = engine
        self._service = service
        self._http = http
        self._grpc = grpc
        self._drain_timeout = drain_timeout
        self._access = access
        self._death_notice = death_notice
        self._end_now = end_now
        self._announce = announce
        self._asked_to_stop = asyncio.Event()
        self._was_ready = False
        self._drain_end = 0.0

    async def run(self) -> None:
        """Returns when the HTTP server has been told to stop."""
        loop = asyncio.get_running_loop()
        for one in SIGNALS:
            loop.add_signal_handler(one, self.on_signal, one)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._grpc.start()
            logger.info("gRPC listens on port %d", self._grpc.port)
            self._engine.start()
            loading = asyncio.create_task(self._announce_ready())
            died = asyncio.create_task(self._engine.wait_dead())
            asked = asyncio.create_task(self._wait_asked())
            tasks = [loading, died, asked]
            await asyncio.wait((died, asked), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                await self._drain(died)
            else:
                await self._linger(asked)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # NOTE: what has been generated may still be on its way to clients, in what is left of the drain.
            self._http.stop(self._grace())
            await asyncio.gather(self._engine.stop(), self._grpc.stop(self._grace()))

    def on_signal(self, number: signal.Signals) -> None:
        """The first one starts the drain, at once; the second ends the process."""
        if self._asked_to_stop.is_set():
            logger.warning("%s again: ending now", number.name)
            self._kill_engine()
            self._end_now(128 + number)
            return
        logger.info("%s: draining for up to %g s; a second signal ends at once", number.name, self._drain_timeout)
        self._service.start_draining()
        self._asked_to_stop.set()

    async def _wait_asked(self) -> None:
        await self._asked_to_stop.wait()

    async def _announce_ready(self) -> None:
        display = LoadingDisplay()
        ready = asyncio.create_task(self._engine.wait_ready())
        try:
            while not ready.done():
                display.show(self._engine.progress)
                await asyncio.wait((ready,), timeout=REFRESH_SECONDS)
            await ready
            self._was_ready = True
        finally:
            ready.cancel()
            display.close()
        port = await self._http.wait_open()
        name, info = self._service.model_name, self._service.info
        self._announce(ready_text(name, info, port, self._grpc.port, self._access))

    async def _drain(self, died: asyncio.Task[None]) -> None:
        """Lets what runs finish; aborts what is left at the drain timeout."""
        idle = asyncio.create_task(self._engine.wait_idle())
        self._drain_end = time.monotonic() + self._drain_timeout
        await asyncio.wait((idle, died), timeout=self._drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        if died.done():
            self.exit_code = 1
        if left := self._engine.num_requests:
            logger.warning("The drain timeout of %g s has passed: aborting %d requests", self._drain_timeout, left)
            self._engine.abort_all(
                RequestAbortedError("the server shuts down and this request did not finish within its drain timeout")
            )

    async def _linger(self, asked: asyncio.Task[None]) -> None:
        """The engine is dead: says so for a while to whoever asks, and then the process is to be restarted."""
        self.exit_code = 1
        failure = (self._engine.failure or "no reason given").splitlines()[0]
        if not self._was_ready:
            logger.error("The model cannot be served: %s", failure)
            return
        logger.error("The engine has died (%s): exiting in %g s", failure, self._death_notice)
        self._engine.abort_all(EngineDeadError("the engine has died"))
        await asyncio.wait((asked,), timeout=self._death_notice)

    def _grace(self) -> float:
        return max(MIN_GRACE_SECONDS, self._drain_end - time.monotonic())

    def _kill_engine(self) -> None:
        if (pid := self._engine.pid) is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                logger.info("The engine process has ended already")
