"""The link from the front to the engine process: starts it, carries messages both ways, notices its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.codec import engine_codec, front_codec
from engine.config import EngineConfig
from engine.log_format import LOG_FORMAT_VARIABLE
from engine.messages import EngineFailed, EngineMessage, FrontMessage, Shutdown

STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.2
"""What a process that has ended without a reason still gets for messages that are on their way."""
LAST_LINES_SECONDS = 2.0
"""Its lines end with it, unless a process that it started holds the pipe."""
FAILED = 1
"""Exit code of a process that has said `EngineFailed` before."""
LOOK_SECONDS = 0.5
"""How often is looked for the end of a process that asyncio does not tell of."""
MAX_LINE_BYTES = 65536

Frames = tuple[bytes, bytes]


class EngineLink:
    """One engine process. on_message: called on the event loop with each of its messages, in order.

    on_log_line: called with each line that the process writes to standard error; its own lines are JSON then. Without
    it the process shares ours.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_message: Callable[[EngineMessage], None],
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._on_message = on_message
        self._on_log_line = on_log_line
        self._process: asyncio.subprocess.Process | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._outgoing = front_codec()
        self._incoming = engine_codec()

    @property
    def pid(self) -> int | None:
        """Process id of the engine process, once started."""
        return None if self._process is None else self._process.pid

    async def run(self) -> int:
        """Starts the process and passes on its messages until it ends; returns its exit code.

        Raises what `on_message` raised. The process has ended and everything is cleaned up in every case.
        """
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="pagedserve-")
        context = zmq.asyncio.Context()
        tasks: list[asyncio.Task[Any]] = []
        try:
            address = f"ipc://{folder}/engine"
            self._socket = _listen(context, address)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "engine.process",
                address,
                msgspec.json.encode(self._config, enc_hook=str).decode(),
                stdin=asyncio.subprocess.PIPE,
                stderr=None if self._on_log_line is None else asyncio.subprocess.PIPE,
                env={**os.environ, LOG_FORMAT_VARIABLE: "text" if self._on_log_line is None else "json"},
                # NOTE: an own session keeps a terminal's Ctrl-C and group signals away: the front decides when it ends.
                start_new_session=True,
            )
            exited = asyncio.create_task(self._ended())
            receiver = asyncio.create_task(self._receive(self._socket))
            tasks = [exited, receiver]
            if self._on_log_line is not None:
                assert self._process.stderr is not None
                tasks.append(asyncio.create_task(read_lines(self._process.stderr, self._on_log_line)))
            await asyncio.wait((exited, receiver), return_when=asyncio.FIRST_COMPLETED)
            if not receiver.done():
                # NOTE: its last words may still be in the socket, and this process may be slow to be scheduled: where
                # it has said why it ended, that is waited for.
                seconds = STOP_SECONDS if exited.result() == FAILED else LAST_WORDS_SECONDS
                await asyncio.wait({receiver}, timeout=seconds)
            if receiver.done():
                receiver.result()
            await asyncio.wait({exited}, timeout=STOP_SECONDS)
            if not exited.done():
                self._process.kill()
            code = await exited
            if self._on_log_line is not None:
                await asyncio.wait({tasks[-1]}, timeout=LAST_LINES_SECONDS)
            return code
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
            for task in tasks:
                task.cancel()
            if self._socket is not None:
                self._socket.close(linger=0)
            context.destroy(linger=0)
            shutil.rmtree(folder, ignore_errors=True)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self, *, ask: bool) -> bool:
        """Ends the process, by `Shutdown` first if `ask`, by force after a while. False when none was started."""
        if self._process is None:
            return False
        if self._process.returncode is None:
            if ask:
                self.send(Shutdown())
            try:
                await asyncio.wait_for(self._ended(), STOP_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._ended()
        return True

    def encode(self, message: FrontMessage) -> Frames:
        """The message for `send_encoded`. Raises where it holds what cannot travel."""
        return self._outgoing.encode(message)

    def send(self, message: FrontMessage) -> None:
        self.send_encoded(self.encode(message))

    def send_encoded(self, frames: Frames) -> None:
        """Sends without waiting; does nothing once the process is gone."""
        if self._socket is not None and not self._socket.closed:
            # NOTE: with no high-water mark the frames are queued at once; the future is already done.
            self._socket.send_multipart(frames)

    async def _ended(self) -> int:
        """The process's exit code, once it has one.

        NOTE: asyncio of Python 3.11 tells of the end when the pipes are closed, too, which a process that it started
        may hold for long; the exit code is there before.
        """
        assert self._process is not None
        told = asyncio.ensure_future(self._process.wait())
        try:
            while (code := self._process.returncode) is None:
                await asyncio.wait({told}, timeout=LOOK_SECONDS)
        finally:
            told.cancel()
        return code

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        """Returns after the process's last message, where that is the reason of its failure."""
        message: EngineMessage | None = None
        while not isinstance(message, EngineFailed):
            message = self._incoming.decode(await socket.recv_multipart())
            self._on_message(message)


async def read_lines(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    """Calls `on_line` with each line until the end of `stream`; one of more than `MAX_LINE_BYTES` comes in pieces."""
    rest = b""
    while chunk := await stream.read(MAX_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            on_line(line.decode(errors="replace"))
    if rest:
        on_line(rest.decode(errors="replace"))


def _listen(context: zmq.asyncio.Context, address: str) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(address)
    return socket
