"""Clients that ask for a stream and never read it: the request is aborted and the front stays small."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from predictor.oip.schema import SERVICE, message_class
from tests.e2e.server import Server, until

MAX_STREAM_BUFFER = 4000
"""About 190 tokens with their alternatives."""
NUM_CLIENTS = 4
ERROR = f"more than {MAX_STREAM_BUFFER} tokens waited"
MAX_GROWTH = 48 * 2**20
"""Of the front's memory: the sockets' own buffers are the kernel's, and the 8 MB that each request makes are never
all there."""


@contextmanager
def started(tiny_model: Path) -> Iterator[Server]:
    with Server(
        model_dir=tiny_model,
        dtype="float32",
        num_threads=1,
        num_kv_blocks=2048,
        max_stream_buffer=MAX_STREAM_BUFFER,
        drain_timeout=1,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    with started(tiny_model) as made:
        yield made


def sampling(**fields: Any) -> dict[str, Any]:
    # NOTE: log probabilities make events of kilobytes: the kernel takes up to 4 MB for a client that does not read.
    return {"max_tokens": 3900, "temperature": 0, "ignore_eos": True, "logprobs": 20, **fields}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "hello", "stream": True, **sampling()}),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            **sampling(logprobs=True, top_logprobs=20),
        },
    ),
    "generate_stream": (
        "/v2/models/tiny/generate_stream",
        {"text_input": "hello", "parameters": sampling(details=True)},
    ),
}


def open_unread(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a request sent, and a small window for an answer that nobody reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server.http_url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def aborts(server: Server) -> float:
    return server.metric("requests_total", finish_reason="abort")


def front_memory(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


@pytest.mark.parametrize("surface", BODIES)
def test_a_client_that_reads_gets_it_all(server: Server, surface: str) -> None:
    path, body = BODIES[surface]
    body = json.loads(json.dumps(body).replace("3900", "400"))
    with httpx.stream("POST", server.http_url + path, json=body, timeout=120.0) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert not any('"error"' in event for event in events)
    assert any('"finish_reason":"length"' in event for event in events)


def infer_message(request_id: str) -> bytes:
    kind = message_class("ModelInferRequest")
    message = kind(model_name="tiny", id=request_id)
    text = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(b"hello")
    stream = message.inputs.add(name="stream", datatype="BOOL", shape=[1])
    stream.contents.bool_contents.append(True)
    for name, value in sampling().items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        else:
            message.parameters[name].int64_param = value
    data: bytes = message.SerializeToString()
    return data


async def test_an_unread_grpc_stream_is_aborted(server: Server) -> None:
    before, memory = aborts(server), front_memory(server)
    response = message_class("ModelStreamInferResponse")
    # NOTE: without probing for bandwidth the flow-control window stays what it is at first: 64 KiB.
    async with grpc.aio.insecure_channel(server.grpc_address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        method = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        calls = []
        for client in range(NUM_CLIENTS):
            call = method()
            await call.write(infer_message(str(client)))
            calls.append(call)
        until(lambda: aborts(server) == before + NUM_CLIENTS, "the aborts", 120.0)
        until(lambda: server.metric("requests_running") == 0, "no request running")
        assert front_memory(server) - memory < MAX_GROWTH
        errors = []
        while not errors:
            message = response.FromString(await calls[0].read())
            errors += [message.error_message] if message.error_message else []
        assert ERROR in errors[0]
        for call in calls:
            call.cancel()


def test_unread_http_streams_are_aborted_and_do_not_hold_up_the_end(tiny_model: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(started(tiny_model))
        before, memory = aborts(server), front_memory(server)
        connections = [stack.enter_context(open_unread(server, *body)) for body in BODIES.values()]
        until(lambda: aborts(server) == before + len(BODIES), "the aborts", 120.0)
        until(lambda: server.metric("requests_running") == 0, "no request running")
        assert server.metric("kv_cache_usage_ratio") == 0
        assert front_memory(server) - memory < MAX_GROWTH
        connections[0].settimeout(60.0)
        answer = b""
        while ERROR.encode() not in answer:
            data = connections[0].recv(2**16)
            assert data, answer[-500:]
            answer = answer[-(2**16) :] + data
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5 * 10
