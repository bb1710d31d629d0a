"""The engine process: `python -m engine.process ADDRESS CONFIG`.

One loop: take what the front sent, run a step, send what it brought. The process ends at `Shutdown`, when its
standard input closes (the front holds the other end, so the engine never outlives it), or with `EngineFailed`.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from engine.codec import engine_codec, front_codec
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.cpu import computes_here, keep_threads_apart, usable_cpus
from engine.errors import PagedServeError
from engine.log_format import LOG_FORMAT_VARIABLE, JsonFormatter
from engine.messages import EngineFailed, EngineMessage, EngineReady, FrontMessage, LoadProgress, Shutdown

logger = logging.getLogger("engine.process")
"""By its name: run as a program, the module is called __main__."""


class Channel(Protocol):
    """The engine's end of the wire."""

    def receive(self, block: bool) -> list[FrontMessage]:
        """Every message that has come; with `block`, waits for at least one."""
        ...

    def send(self, message: EngineMessage) -> None: ...


class ZmqChannel:
    """A DEALER socket connected to the front's."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._incoming = front_codec()
        self._outgoing = engine_codec()

    def receive(self, block: bool) -> list[FrontMessage]:
        received: list[FrontMessage] = []
        if block:
            received.append(self._incoming.decode(self._socket.recv_multipart()))
        while True:
            try:
                received.append(self._incoming.decode(self._socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                return received

    def send(self, message: EngineMessage) -> None:
        self._socket.send_multipart(self._outgoing.encode(message))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def run_loop(core: EngineCore, channel: Channel) -> None:
    """Serves until `Shutdown`. Whatever the core raises ends the loop: an engine in doubt must not go on."""
    while True:
        for message in channel.receive(block=not core.has_work()):
            if isinstance(message, Shutdown):
                return
            core.handle(message)
        if (notices := core.drain_notices()) is not None:
            channel.send(notices)
        if core.has_work():
            channel.send(core.step())


def main(address: str, config_json: str) -> int:
    """Loads the model and serves the front at `address`; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if os.environ.get(LOG_FORMAT_VARIABLE) == "json":
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
        logging.captureWarnings(True)
    threading.Thread(target=_end_with_front, args=(address,), name="front-watch", daemon=True).start()
    channel = ZmqChannel(address)
    try:
        config = msgspec.json.decode(config_json, type=EngineConfig, dec_hook=lambda kind, value: kind(value))
        # NOTE: the CPUs are counted and the threads told where to run before torch comes in: bound by OpenMP, this
        # thread would see one CPU only.
        config = replace(config, num_threads=config.num_threads or usable_cpus())
        if computes_here(config.device):
            keep_threads_apart(config.num_threads)
        from engine.build import build_engine

        core = build_engine(config, _Throttled(channel))
        channel.send(EngineReady(core.info))
        run_loop(core, channel)
    except PagedServeError as error:
        channel.send(EngineFailed(str(error)))
        return 1
    except Exception as error:
        # NOTE: this one guard turns any engine exception into the state "dead"; nothing is retried in doubt.
        logger.exception("The engine failed")
        channel.send(EngineFailed(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"))
        return 1
    finally:
        channel.close()
    return 0


class _Throttled:
    """Passes on progress of a phase when it begins, ends, or has grown by a hundredth."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last: LoadProgress | None = None

    def __call__(self, progress: LoadProgress) -> None:
        last = self._last
        if (
            last is None
            or last.phase != progress.phase
            or progress.done >= progress.total
            or (progress.done - last.done) * 100 >= progress.total
        ):
            self._last = progress
            self._channel.send(progress)


def _end_with_front(address: str) -> None:
    sys.stdin.buffer.read()
    # NOTE: a front that was killed could not remove the folder of its socket.
    shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    sys.stderr.flush()
    # NOTE: the watcher thread may hold standard input's lock; a normal interpreter exit would wait for it.
    os._exit(code)
