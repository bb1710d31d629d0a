"""The lines of the engine process."""

from __future__ import annotations

import asyncio

import pytest

from engine.link import MAX_LINE_BYTES, read_lines


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
