"""The life of the real server: loading, gauges, drain, the engine's death, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import STEP_SECONDS, Server, has_ended, stopped, until

MakeServer = Callable[..., Server]
ABORT_SECONDS = 5 * 1.0
NOTICE_SECONDS = 5 * 5.0
"""Five times what is promised: gauges at 0 after aborts, and a dead engine noticed."""


@pytest.fixture
def make_server(tiny_model: Path) -> Iterator[MakeServer]:
    """make_server(**flags): a server of the tiny model, not started, of this test alone."""
    servers: list[Server] = []

    def make(**flags: Any) -> Server:
        defaults = {"model_dir": tiny_model, "dtype": "float32", "num_threads": 1, "num_kv_blocks": 1024}
        servers.append(Server(**(defaults | flags)))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


class Events:
    """A completions stream, read event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.events: list[Any] = []

    def read(self, count: int | None = None) -> list[Any]:
        """`count` further events, or all that come until the end."""
        read: list[Any] = []
        while count is None or len(read) < count:
            line = next(self._lines, None)
            if line is None:
                break
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                read.append(data if data == "[DONE]" else json.loads(data))
        self.events += read
        return read

    @property
    def num_tokens(self) -> int:
        """Tokens by the usage that the last events told."""
        return next(e["usage"]["completion_tokens"] for e in reversed(self.events) if e != "[DONE]" and e.get("usage"))

    @property
    def finish_reasons(self) -> list[str]:
        choices = [c for e in self.events if e != "[DONE]" for c in e.get("choices", [])]
        return [c["finish_reason"] for c in choices if c["finish_reason"] is not None]

    @property
    def errors(self) -> list[Any]:
        return [e["error"] for e in self.events if e != "[DONE]" and "error" in e]


@contextmanager
def streaming(server: Server, max_tokens: int = 4000, **fields: Any) -> Iterator[Events]:
    body = {
        "model": "tiny",
        "prompt": "hello world",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    with httpx.stream("POST", f"{server.http_url}/v1/completions", json=body, timeout=STEP_SECONDS) as response:
        assert response.status_code == 200, response.read()
        yield Events(response)


def complete(server: Server, max_tokens: int = 2, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": max_tokens, "temperature": 0, **fields}
    return httpx.post(f"{server.http_url}/v1/completions", json=body, timeout=STEP_SECONDS)


def gauges(server: Server) -> dict[str, float]:
    names = ("requests_running", "requests_waiting", "waiting_prompt_tokens", "kv_cache_usage_ratio")
    return {name: server.metric(name) for name in names}


def test_the_listener_opens_first_and_says_that_it_loads(make_server: MakeServer) -> None:
    server = make_server().launch()
    with stopped(server.engine_pid):  # it cannot become ready while we look
        server.wait_open()
        assert server.status("/v2/health/live") == 200
        ready = httpx.get(f"{server.http_url}/v2/health/ready", timeout=STEP_SECONDS)
        assert ready.status_code == 503
        assert ready.json()["ready"] is False
        refused = complete(server)
        assert refused.status_code == 503
        assert "loading" in refused.json()["error"]["message"]
        assert server.metric("engine_up") == 0
    server.wait_ready()
    assert server.metric("engine_up") == 1
    assert complete(server).status_code == 200
    until(lambda: f"curl {server.http_url.replace('127.0.0.1', 'localhost')}/v1/completions" in server.logs, "the curl")
    assert server.stop() == 0


def test_a_bad_model_ends_with_1_and_a_message(make_server: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}')
    server = make_server(model_dir=tmp_path).launch()
    assert server.wait() == 1
    assert "cannot be served" in server.logs


def test_a_model_folder_that_is_not_there_ends_with_1_and_its_path(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(model_dir=tmp_path / "nowhere").launch()
    assert server.wait() == 1
    assert str(tmp_path / "nowhere") in server.logs


@pytest.mark.parametrize("flag", ["http_port", "grpc_port"])
def test_a_port_in_use_ends_with_1_and_names_the_flag(make_server: MakeServer, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = make_server(**{flag: port}).launch()
        assert server.wait() == 1
    assert f"port {port} is in use; choose another one with --{flag}" in server.logs


def test_M1_M2_aborted_streams_leave_no_trace(tiny_server: Server) -> None:
    aborts = tiny_server.metric("requests_total", finish_reason="abort")
    with ExitStack() as streams:
        five = [streams.enter_context(streaming(tiny_server)) for _ in range(5)]
        for events in five:
            events.read(1)
        until(lambda: tiny_server.metric("requests_running") == 5, "five running requests")
        assert tiny_server.metric("kv_cache_usage_ratio") > 0
    until(lambda: not any(gauges(tiny_server).values()), "gauges at 0", ABORT_SECONDS)
    assert tiny_server.metric("requests_total", finish_reason="abort") == aborts + 5
    ended = sum(tiny_server.metric("requests_total", finish_reason=r) for r in ("stop", "length", "abort", "error"))
    for name in ("duration_seconds", "prompt_tokens", "generation_tokens", "queue_seconds"):
        assert tiny_server.metric(f"request_{name}_count") == ended, name


def test_an_unstreamed_client_that_goes_away_aborts_its_request(tiny_server: Server) -> None:
    aborts = tiny_server.metric("requests_total", finish_reason="abort")
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4000, "n": 8, "ignore_eos": True}).encode()
    host, port = tiny_server.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        until(lambda: tiny_server.metric("requests_running") > 0, "the request to run")
    until(lambda: tiny_server.metric("requests_total", finish_reason="abort") == aborts + 1, "the abort", ABORT_SECONDS)
    until(lambda: not any(gauges(tiny_server).values()), "gauges at 0", ABORT_SECONDS)


def test_M3_a_request_with_n_is_one_request_and_n_sequences(tiny_server: Server) -> None:
    before = {n: tiny_server.metric(n) for n in ("generation_tokens_total", "request_generation_tokens_count")}
    lengths = tiny_server.metric("requests_total", finish_reason="length")
    answer = complete(tiny_server, 5, n=3, temperature=1, ignore_eos=True)
    assert len(answer.json()["choices"]) == 3
    assert tiny_server.metric("requests_total", finish_reason="length") == lengths + 1
    assert tiny_server.metric("request_generation_tokens_count") == before["request_generation_tokens_count"] + 1
    assert tiny_server.metric("generation_tokens_total") == before["generation_tokens_total"] + 15


def test_M4_a_killed_engine_is_told_to_everyone_and_ends_the_server_with_1(make_server: MakeServer) -> None:
    with make_server() as server, streaming(server) as events:
        events.read(3)
        os.kill(server.engine_pid, signal.SIGKILL)
        killed = time.monotonic()
        events.read()
        assert len(events.errors) == 1
        assert events.finish_reasons == []
        assert time.monotonic() - killed < NOTICE_SECONDS
        until(lambda: server.status("/v2/health/live") in (503, 0), "live to be false", NOTICE_SECONDS)
        assert server.status("/v2/health/ready") in (503, 0)
        assert server.wait() == 1
        assert "engine has died" in server.logs


def test_M4_a_dead_engine_is_announced_before_the_exit(make_server: MakeServer) -> None:
    with make_server() as server:
        os.kill(server.engine_pid, signal.SIGKILL)
        answers = set()
        while server.process is not None and server.process.poll() is None:
            answers.add((server.status("/v2/health/live"), server.status("/v2/health/ready")))
        assert (503, 503) in answers
        assert server.wait() == 1


def test_M5_a_stalled_engine_with_work_is_not_live_and_an_idle_one_is(make_server: MakeServer) -> None:
    with make_server(stall_timeout=1) as server:
        time.sleep(1.5)  # longer than the stall timeout, idle
        assert server.status("/v2/health/live") == 200
        with streaming(server, 3000) as events:
            events.read(1)
            with stopped(server.engine_pid):
                until(lambda: server.status("/v2/health/live") == 503, "live to be false")
                assert server.status("/v2/health/ready") == 503
            until(lambda: server.status("/v2/health/live") == 200, "live to be true again")


def test_M9_a_drain_lets_running_requests_finish(make_server: MakeServer) -> None:
    with make_server(drain_timeout=600) as server:
        engine_pid = server.engine_pid
        # NOTE: so many tokens that the engine is far from its last one when it is stopped.
        with streaming(server, 1000) as events:
            events.read(3)
            with stopped(engine_pid):  # it cannot finish while we look
                server.signal(signal.SIGTERM)
                until(lambda: server.status("/v2/health/ready") == 503, "ready to be false")
                assert server.status("/v2/health/live") == 200
                assert server.metric("engine_up") == 1
                refused = complete(server)
                assert refused.status_code == 503
                assert "shutting down" in refused.json()["error"]["message"]
            events.read()
            assert events.errors == []
            assert events.events[-1] == "[DONE]"
            assert events.finish_reasons == ["length"]
            assert events.num_tokens == 1000
            assert server.wait() == 0


def test_what_outlasts_the_drain_timeout_gets_an_error_event(make_server: MakeServer) -> None:
    with make_server(drain_timeout=0.2) as server, streaming(server) as events:
        events.read(1)
        with stopped(server.engine_pid):
            server.signal(signal.SIGTERM)
            events.read()
        assert len(events.errors) == 1
        assert "drain timeout" in events.errors[0]["message"]
        assert server.wait() == 0


def test_a_second_signal_ends_at_once_and_leaves_no_engine(make_server: MakeServer) -> None:
    with make_server(drain_timeout=600) as server, streaming(server) as events:
        events.read(1)
        engine = psutil.Process(server.engine_pid)
        with stopped(engine.pid):
            server.signal(signal.SIGINT)
            until(lambda: server.status("/v2/health/ready") == 503, "the drain")
            server.signal(signal.SIGINT)
            assert server.wait() == 130
            until(lambda: has_ended(engine), "the engine's end")


def test_a_killed_server_takes_its_engine_with_it(make_server: MakeServer) -> None:
    with make_server() as server:
        engine = psutil.Process(server.engine_pid)
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: has_ended(engine), "the engine's end")


def test_M6_M7_a_full_queue_is_429_and_still_live(make_server: MakeServer) -> None:
    with make_server(max_waiting_requests=10, max_num_seqs=1) as server, ThreadPoolExecutor(50) as pool:
        with stopped(server.engine_pid):
            answers = [pool.submit(complete, server) for _ in range(50)]
            until(lambda: sum(a.done() for a in answers) == 40, "forty refusals")
            refused = [a.result() for a in answers if a.done()]
            assert {r.status_code for r in refused} == {429}
            assert all(int(r.headers["retry-after"]) >= 1 for r in refused)
            assert server.status("/v2/health/live") == 200
        assert sorted(a.result().status_code for a in answers) == [200] * 10 + [429] * 40
        assert server.metric("requests_rejected_total", reason="waiting_requests") == 40
