"""Requests that ask for another protocol are served as they are, each answered once, over real connections."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.server import STEP_SECONDS, Server, until
from tests.sockets import is_read

INFER = "/v2/models/tiny/infer"
BODY = json.dumps(
    {
        "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}],
        "parameters": {"max_tokens": 1, "temperature": 0},
    }
).encode()
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
LIVE_AND_CLOSE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, headers: str = "") -> bytes:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def exchange(server: Server, *packets: bytes, end: bytes = LIVE_AND_CLOSE) -> list[tuple[int, bytes]]:
    """Status and body of every answer to packets sent one by one, and to a last request that ends the connection."""
    host, port = server.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=STEP_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            connection.sendall(packet)
            until(lambda: is_read(connection), "the server to read it, each packet by itself")
        if end:
            connection.sendall(end)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return answers(received)


def answers(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), head
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        found.append((int(head.split()[1]), data[:length]))
        data = data[length:]
    return found


def statuses(server: Server, *packets: bytes, end: bytes = LIVE_AND_CLOSE) -> list[int]:
    return [status for status, _ in exchange(server, *packets, end=end)]


def test_the_body_of_a_request_that_asks_for_h2c_is_read(tiny_server: Server) -> None:
    (status, body), _ = exchange(tiny_server, post(BODY, H2C))
    assert status == 200, body
    assert json.loads(body)["outputs"]


@pytest.mark.parametrize("cut", [0, 5], ids=["whole", "in part"])
def test_its_body_may_come_after_its_head(tiny_server: Server, cut: int) -> None:
    request = post(BODY, H2C)
    start = len(request) - len(BODY) + cut
    assert statuses(tiny_server, request[:start], request[start:]) == [200, 200]


def test_a_body_that_looks_like_a_request_is_not_one(tiny_server: Server) -> None:
    assert statuses(tiny_server, post(LIVE, H2C)) == [400, 200]
    request = post(LIVE, H2C)
    assert statuses(tiny_server, request[: -len(LIVE)], LIVE) == [400, 200]


def test_h2c_may_be_asked_for_again_on_the_same_connection(tiny_server: Server) -> None:
    assert statuses(tiny_server, LIVE, post(BODY, H2C), post(BODY), post(BODY, H2C)) == [200] * 5


def test_a_websocket_is_not_opened(tiny_server: Server) -> None:
    request = (
        "GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    plain = exchange(tiny_server, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert plain[0][0] == 200
    assert exchange(tiny_server, request.encode()) == plain


def test_an_upgrade_that_shows_in_the_middle_of_a_head_ends_the_connection(tiny_server: Server) -> None:
    request = post(LIVE, H2C)
    cut = request.index(b"Connection:")
    ((status, body),) = exchange(tiny_server, request[:cut], request[cut:], end=b"")
    assert status == 400
    assert set(json.loads(body)) == {"error"}


def test_a_pipelined_upgrade_is_refused_after_the_answers_before_it(tiny_server: Server) -> None:
    assert statuses(tiny_server, post(BODY) + LIVE + post(LIVE, H2C), end=b"") == [200, 200, 400]


def test_the_word_in_a_body_is_only_a_word(tiny_server: Server) -> None:
    request = post(b"\r\nUpgrade: h2c\r\n\r\n")
    assert statuses(tiny_server, request) == [400, 200]
    assert statuses(tiny_server, request[:-10], request[-10:]) == [400, 200]


def test_other_requests_stay_as_they_were(tiny_server: Server) -> None:
    assert statuses(tiny_server, LIVE, post(BODY), LIVE) == [200] * 4
    assert statuses(tiny_server, LIVE + post(BODY) + LIVE) == [200] * 4


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_with_http2_gets_its_answer(tiny_server: Server, tmp_path: Path) -> None:
    body, url = tmp_path / "body.json", tiny_server.http_url + INFER
    body.write_bytes(BODY)
    command = ["curl", "-sS", "--http2", "--max-time", "60", "-w", "\n%{http_code}", "-d", f"@{body}", url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    answer, status = result.stdout.rsplit("\n", 1)
    assert status == "200", answer
    assert json.loads(answer)["outputs"]
