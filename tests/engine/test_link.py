"""The lines of the engine process, and its last words."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import link as module
from engine.config import EngineConfig
from engine.link import MAX_LINE_BYTES, EngineLink, read_lines
from engine.messages import EngineFailed, EngineMessage

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\n", b"tw", b"o"], ["one", "two"]),
        ([b"caf\xc3", b"\xa9\n\xff\n"], ["café", "�"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
    ],
)
async def test_lines_come_whole_whatever_the_pieces(chunks: list[bytes], lines: list[str]) -> None:
    stream, read = asyncio.StreamReader(), []
    reading = asyncio.create_task(read_lines(stream, read.append))
    for chunk in chunks:
        stream.feed_data(chunk)
        await asyncio.sleep(0)
    stream.feed_eof()
    await reading
    assert read == lines


async def test_a_line_without_end_comes_in_pieces() -> None:
    stream, read = asyncio.StreamReader(), []
    stream.feed_data(b"x" * (5 * MAX_LINE_BYTES) + b"\nend\n")
    stream.feed_eof()
    await read_lines(stream, read.append)
    assert "".join(read) == "x" * (5 * MAX_LINE_BYTES) + "end"
    assert max(map(len, read)) <= 2 * MAX_LINE_BYTES
    assert read[-1] == "end"


@pytest.fixture
def engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """engine_runs(program): what the engine process is."""

    def set_program(program: str) -> None:
        command = shlex.join([sys.executable, "-c", program])
        (tmp_path / "engine").write_text(
            f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(REPOSITORY))}\nexec {command} "$@"\n'
        )
        (tmp_path / "engine").chmod(0o700)
        monkeypatch.setattr(module, "sys", SimpleNamespace(executable=str(tmp_path / "engine")))

    return set_program


FAILS = """
import sys
from engine.messages import EngineFailed
from engine.process import ZmqChannel
channel = ZmqChannel(sys.argv[3])
channel.send(EngineFailed("no such model"))
channel.close()
sys.exit(1)
"""


async def test_a_reason_that_is_read_late_is_not_lost(
    engine_runs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front is so busy that it reads the message when the process has long ended."""
    engine_runs(FAILS)
    messages: list[EngineMessage] = []
    link = EngineLink(EngineConfig(model_dir=Path("nowhere")), messages.append)
    listen = module._listen

    def listen_late(*arguments: Any) -> Any:
        socket = listen(*arguments)
        receive = socket.recv_multipart

        async def receive_late() -> Any:
            frames = await receive()
            assert link._process is not None
            await link._process.wait()
            await asyncio.sleep(0.05)
            return frames

        socket.recv_multipart = receive_late
        return socket

    monkeypatch.setattr(module, "_listen", listen_late)
    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.0)
    assert await link.run() == 1
    assert messages == [EngineFailed("no such model")]


@pytest.mark.parametrize("code", [0, 1, 3])
async def test_the_last_lines_are_read(
    engine_runs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    engine_runs(f"import sys\nfor number in range(2000): print(number, file=sys.stderr)\nsys.exit({code})")
    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.0)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.0)
    lines: list[str] = []
    link = EngineLink(EngineConfig(model_dir=Path("nowhere")), lambda _message: None, lines.append)
    assert await link.run() == code
    assert lines == [str(number) for number in range(2000)]


@pytest.mark.parametrize("code", [1, 3])
async def test_a_process_that_holds_the_pipes_does_not_hold_up_the_end(
    engine_runs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As a compiler that the engine has started may."""
    child = "subprocess.Popen(['sleep', '600'], stdin=subprocess.DEVNULL)"
    engine_runs(f"import os, subprocess\nos.write(2, b'%d\\n' % {child}.pid)\nos._exit({code})")
    for name in ("STOP_SECONDS", "LAST_WORDS_SECONDS", "LAST_LINES_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)
    lines: list[str] = []
    link = EngineLink(EngineConfig(model_dir=Path("nowhere")), lambda _message: None, lines.append)
    try:
        async with asyncio.timeout(60):
            assert await link.run() == code
        assert len(lines) == 1
    finally:
        for pid in map(int, lines):
            os.kill(pid, signal.SIGKILL)
    assert link._process is not None
    assert link._process.stderr is not None
    await link._process.stderr.read()  # to its end, with which asyncio closes what it has of the process
