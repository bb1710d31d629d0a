"""The log of the real server: every line JSON, one a request, and never a prompt."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from predictor.oip.schema import message_class
from tests.certificates import Authority
from tests.e2e.server import REPOSITORY, START_SECONDS, STEP_SECONDS, Server, until
from tests.sockets import reserved_port

MARKER = "sesame"
TRACE_ID = "ab" * 16
FLAGS = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 256, "log_format": "json"}


class JsonServer(Server):
    """One whose log is JSON."""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Everything that was written so far, all of it JSON objects."""
        return [json.loads(line) for line in self.logs.splitlines()]

    def line(self, request_id: str) -> dict[str, Any]:
        """The request's line, once it is there."""

        def find() -> dict[str, Any] | None:
            found = [
                line
                for line in self.lines
                if line["logger"] == "predictor.requests" and line.get("request_id") == request_id
            ]
            assert len(found) <= 1
            return found[0] if found else None

        return until(find, f"the line of {request_id}")


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[JsonServer]:
    with JsonServer(model_dir=tiny_model, **FLAGS) as made:
        assert isinstance(made, JsonServer)
        yield made


def complete(server: Server, request_id: str, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": MARKER, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    headers = {"x-request-id": request_id, "traceparent": f"00-{TRACE_ID}-{'cd' * 8}-01"}
    return httpx.post(f"{server.http_url}/v1/completions", json=body, headers=headers, timeout=STEP_SECONDS)


def test_an_answered_a_streamed_and_an_invalid_request(server: JsonServer) -> None:
    assert complete(server, "ok").headers["x-request-id"] == "ok"
    assert complete(server, "streamed", stream=True).headers["x-request-id"] == "streamed"
    assert complete(server, "invalid", temperature=-1).headers["x-request-id"] == "invalid"
    line = server.line("ok")
    assert line.items() >= {"status": 200, "finish_reason": "length", "output_tokens": 4, "trace_id": TRACE_ID}.items()
    assert 0 < line["ttft_seconds"] < line["total_seconds"]
    assert server.line("streamed")["output_tokens"] == 4
    assert server.line("invalid").items() >= {"status": 400, "error_type": "InvalidParameterError"}.items()


def test_a_prefix_hit_is_told(server: JsonServer) -> None:
    for name in ("cold", "warm"):
        complete(server, name, prompt=MARKER * 20)
    assert server.line("warm")["cached_tokens"] > server.line("cold")["cached_tokens"]


def test_grpc_requests(server: JsonServer) -> None:
    kind = message_class("ModelInferRequest")
    message = kind(model_name="tiny", id="7")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(MARKER.encode())
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", kind.SerializeToString)
        call(message, metadata=(("x-request-id", "grpc"),), timeout=STEP_SECONDS)
        streamed = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", kind.SerializeToString)
        assert list(streamed(iter([message]), metadata=(("x-request-id", "stream"),), timeout=STEP_SECONDS))
    assert (
        server.line("grpc").items() >= {"protocol": "grpc", "grpc_status": "OK", "prompt_tokens": len(MARKER)}.items()
    )
    assert server.line("stream-1")["route"] == "inference.GRPCInferenceService/ModelStreamInfer"


def test_an_aborted_request(server: JsonServer) -> None:
    body = {"model": "tiny", "prompt": MARKER, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    headers = {"x-request-id": "aborted"}
    url = f"{server.http_url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=STEP_SECONDS) as response:
        lines = response.iter_lines()
        next(lines)
    line = server.line("aborted")
    assert (line["finish_reason"], line["error_type"]) == ("abort", "client_disconnected")


def test_a_pipelining_client_that_leaves_is_no_error_of_the_server(server: JsonServer) -> None:
    body = json.dumps({"model": "tiny", "prompt": MARKER, "max_tokens": 2000, "ignore_eos": True, "stream": True})
    url = httpx.URL(server.http_url)
    with socket.create_connection((url.host, url.port or 0)) as connection:
        for number in range(2):
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: piped-{number}\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        connection.recv(1024)
    assert server.line("piped-0").items() >= {"finish_reason": "abort", "error_type": "client_disconnected"}.items()
    assert all("ASGI" not in line["message"] for line in server.lines)


def test_an_id_or_a_name_cannot_forge_a_line(server: JsonServer) -> None:
    complete(server, "forged", model='x"}\n{"logger": "predictor.requests", "request_id": "fake"')
    assert server.line("forged")["status"] == 404
    assert all(line.get("request_id") != "fake" for line in server.lines)


def test_every_line_is_json_and_none_holds_a_prompt_or_an_output(server: JsonServer) -> None:
    complete(server, "last")
    server.line("last")
    expected = {"predictor", "predictor.requests", "kserve", "uvicorn.error", "engine.runner.model_runner"}
    # NOTE: lines of the engine come by a pipe of their own, perhaps later than those of a request.
    until(lambda: {line["logger"] for line in server.lines} >= expected, f"lines of {expected}")
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in server.lines)
    assert MARKER not in server.logs


def test_the_death_of_the_engine_is_json_to_the_end(tiny_model: Path) -> None:
    with JsonServer(model_dir=tiny_model, **FLAGS) as server:
        assert isinstance(server, JsonServer)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait() == 1
        assert "The engine has died" in "\n".join(line["message"] for line in server.lines)


def test_a_refusal_at_the_start_is_json(tmp_path: Path) -> None:
    server = JsonServer(model_dir=tmp_path / "nowhere", ssl_certfile="none.pem", ssl_keyfile="none.pem", **FLAGS)
    server.launch()
    try:
        assert server.wait() == 1
        (line,) = server.lines
        assert line["level"] == "error"
        assert "none.pem" in line["message"]
    finally:
        server.close()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_server_whose_standard_error_nobody_reads_serves(tiny_model: Path, log_format: str) -> None:
    """The pipe is full from the start; the engine, too, has lines to write while it loads."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 4096)
    os.set_blocking(write_end, True)
    with reserved_port() as port:
        flags = {**FLAGS, "model_dir": tiny_model, "http_port": port, "grpc_port": 0, "log_format": log_format}
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        process = subprocess.Popen(
            [sys.executable, "-m", "predictor", *words], cwd=REPOSITORY, stdout=write_end, stderr=write_end
        )

        def is_ready() -> bool:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready", timeout=STEP_SECONDS).status_code == 200
            return False

        try:
            until(is_ready, "the server to be ready", START_SECONDS)
            process.terminate()
            assert process.wait(STEP_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            os.close(read_end)
            os.close(write_end)


def test_a_failed_handshake_is_no_line_of_grpcs_own(tiny_model: Path, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    flags = {**FLAGS, "ssl_certfile": pair.cert, "ssl_keyfile": pair.key}
    with JsonServer(model_dir=tiny_model, client={"verify": False}, **flags) as server:
        assert isinstance(server, JsonServer)
        host, port = server.grpc_address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"no TLS at all\r\n" * 50)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
        assert server.stop() == 0
        assert server.lines


def test_text_lines_of_the_engine_have_their_time(tiny_server: Server) -> None:
    """The same as ours; so has what a library writes there."""
    (line,) = until(lambda: [line for line in tiny_server.logs.splitlines() if "KV pool" in line], "its line")
    assert re.match(r"[-\d]{10} [:\d]{8}\.\d{3} engine\.runner\.model_runner INFO: KV pool", line)


def test_prompts_are_shown_and_lines_are_bounded_as_the_flags_say(tiny_model: Path) -> None:
    with JsonServer(model_dir=tiny_model, log_prompts="true", request_log_rate=1, **FLAGS) as server:
        assert isinstance(server, JsonServer)
        complete(server, "p")
        assert server.line("p")["prompt"] == MARKER
        for number in range(50):
            complete(server, f"many-{number}", max_tokens=1)
        until(lambda: any("num_left_out" in line for line in server.lines), "the line of those left out")
