"""One line a request: what it holds, what it never holds, and its bounds."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.log_format import JsonFormatter
from predictor.config import ServerConfig
from predictor.logs import LogWriter, TextFormatter
from predictor.request_context import RequestContext, RequestEdge
from predictor.request_log import MAX_LOGGED_PROMPT_CHARACTERS, RequestLog
from predictor.server import build_edge
from tests.fake_engine import FakeEngine
from tests.predictor.edge_app import TRACE_ID, edge_app, infer_message, traceparent
from tests.predictor.oip.conftest import until

MARKER = "sesame"


class Lines:
    """What `predictor.requests` writes."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream = io.StringIO()
        self.writer = LogWriter(self.stream, formatter)

    @property
    def text(self) -> str:
        self.writer.flush()
        return self.stream.getvalue()

    @property
    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture(params=["json"])
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    made = Lines(JsonFormatter() if request.param == "json" else TextFormatter())
    logger = logging.getLogger("predictor")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(made.writer)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield made
    logger.removeHandler(made.writer)
    logger.setLevel(level)
    logger.propagate = propagate
    made.writer.close()


async def test_the_line_of_a_completion(lines: Lines) -> None:
    async with edge_app(listeners=[RequestLog(100)]) as server:
        body = {"model": "model", "prompt": MARKER, "max_tokens": 4}
        await server.client.post("/v1/completions", body, {"x-request-id": "r1", "traceparent": traceparent("00")})
    (line,) = lines.read
    assert line["message"] == "POST /v1/completions 200"
    assert (
        line.items()
        >= {
            "level": "info",
            "logger": "predictor.requests",
            "request_id": "r1",
            "trace_id": TRACE_ID,
            "protocol": "rest",
            "route": "/v1/completions",
            "method": "POST",
            "status": 200,
            "client": "127.0.0.1:1",
            "model": "model",
            "finish_reason": "length",
            "num_prompts": 1,
            "n": 1,
            "prompt_tokens": len(MARKER),
            "output_tokens": 4,
            "cached_tokens": 0,
            "num_preemptions": 0,
        }.items()
    )
    assert line["engine_id"].startswith("cmpl-r1.")
    for name in ("queue", "prefill", "decode", "ttft", "total"):
        assert 0 <= line[f"{name}_seconds"] < 60
    assert line["tokens_per_second"] > 0
    assert "error_type" not in line


async def test_refused_invalid_and_failed_requests_tell_why(lines: Lines) -> None:
    async with edge_app(FakeEngine(fail_after=1), listeners=[RequestLog(100)]) as server:
        await server.client.post("/v1/completions", {"prompt": MARKER, "temperature": -1})
        await server.client.post("/v1/completions", b'{"prompt": "' + MARKER.encode())
        await server.client.post("/v1/completions", {"prompt": MARKER, "model": "other"})
        await server.client.complete(MARKER)
        await server.client.complete(MARKER)
    told = [(line["status"], line["error_type"], line.get("error_code")) for line in lines.read]
    assert told[0] == (400, "InvalidParameterError", "invalid_parameter")
    assert told[1][0] == 400
    assert told[2] == (404, "ModelNotFoundError", "model_not_found")
    assert told[3:] == [(503, "EngineDeadError", None)] * 2
    assert lines.read[3]["finish_reason"] == "error"
    assert MARKER not in lines.text


async def test_what_a_client_says_of_itself_is_cut(lines: Lines) -> None:
    """As a method of h11's, and as an address behind a proxy that is trusted."""
    request = RequestContext("r", "http", "X" * 50_000, RequestEdge(), client="9" * 50_000)
    RequestLog(100).on_request_ended(request)
    (line,) = lines.read
    assert len(lines.text) < 1000
    assert line["method"] == "X" * 97 + "..."


async def test_the_line_of_a_grpc_request(lines: Lines) -> None:
    async with edge_app(listeners=[RequestLog(100)]) as server:
        await server.grpc.call("ModelInfer", infer_message(MARKER.encode()))
        await until(lambda: len(server.ended.requests) == 1)
    (line,) = lines.read
    assert line["message"] == "inference.GRPCInferenceService/ModelInfer OK"
    assert (line["protocol"], line["grpc_status"], line["finish_reason"]) == ("grpc", "OK", "stop")
    assert line["client"].startswith("127.0.0.1:")
    assert not line.keys() & {"method", "status"}, "a member has one type"
    assert MARKER not in lines.text


async def test_the_line_of_several_prompts_has_their_sums(lines: Lines) -> None:
    async with edge_app(listeners=[RequestLog(100)]) as server:
        await server.client.complete(["ab", "cde"], max_tokens=3, n=2, temperature=1)
    (line,) = lines.read
    assert [line[name] for name in ("num_prompts", "n", "prompt_tokens", "output_tokens")] == [2, 2, 5, 12]


async def test_the_engines_name_is_the_first_prompts_whichever_ends_first(lines: Lines) -> None:
    tensors = [
        {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": ["ab", "cde"]},
        {
            "name": "sampling_parameters",
            "datatype": "BYTES",
            "shape": [2],
            "data": ['{"max_tokens": 3, "ignore_eos": true}', '{"max_tokens": 1}'],
        },
    ]
    async with edge_app(listeners=[RequestLog(100)]) as server:
        await server.client.post("/v2/models/model/infer", {"inputs": tensors})
        records = server.ended.last.records
    assert [record.num_prompt_tokens for record in records] == [2, 3]
    assert records[0].finish_time > records[1].finish_time
    assert lines.read[0]["engine_id"] == records[0].request_id


async def test_prompts_are_shown_only_when_asked_for_and_cut(lines: Lines) -> None:
    async with edge_app(listeners=[RequestLog(100)], keeps_prompts=True) as server:
        await server.client.complete(MARKER)
        await server.client.complete("x" * 200)
        await server.client.complete([1, 2, 3])
    read = lines.read
    assert read[0]["prompt"] == MARKER
    assert "prompt" not in read[2]
    request = RequestContext("r", "http", "POST", RequestEdge(), prompt="y" * 10_000, status=200)
    RequestLog(100).on_request_ended(request)
    assert lines.read[-1]["prompt"] == "y" * MAX_LOGGED_PROMPT_CHARACTERS


async def test_outputs_are_never_shown(lines: Lines) -> None:
    async with edge_app(listeners=[RequestLog(100)], keeps_prompts=True) as server:
        answer = await server.client.complete("Hi")
        assert "Hello, world!" in answer.json["choices"][0]["text"]
    assert "Hello" not in lines.text


@pytest.mark.parametrize("lines", ["json", "text"], indirect=True)
async def test_a_name_cannot_forge_a_line(lines: Lines) -> None:
    name = 'm\n2026-11-29 predictor.requests INFO: POST /v1/completions 200 request_id="x'
    async with edge_app(listeners=[RequestLog(100)]) as server:
        await server.client.post("/v1/completions", {"model": name, "prompt": "Hi"})
        await server.client.post("/v1/completions", {"model": "m", "prompt": "Hi"}, {"x-request-id": name})
        await server.grpc.call("ModelInfer", infer_message(id="b\nc"), metadata=(("x-request-id", "m"),))
        await until(lambda: len(server.ended.requests) == 3)
    assert len(lines.text.splitlines()) == 3


def ended(at: float, status: int = 200) -> RequestContext:
    """One without a route, which ended at that time."""
    request = RequestContext("r", "http", "GET", RequestEdge(), status=status)
    request.start_time = request.end_time = at + 1000.0
    return request


async def test_requests_beyond_the_rate_are_counted_in_one_line(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.request_log.SUMMARY_SECONDS", 0.2)
    log = RequestLog(3)
    for number in range(10):
        log.on_request_ended(ended(0.01 * number, 200 if number < 8 else 503))
    await until(lambda: "num_left_out" in lines.text)
    read = lines.read
    assert [line["message"] for line in read[:3]] == ["GET (no route) 200"] * 3
    assert (read[3]["num_left_out"], read[3]["by_status"]) == (7, {"200": 5, "503": 2})
    assert read[3]["message"] == "7 requests have no line of their own: more than 3 ended in a second"
    log.on_request_ended(ended(0.2))
    assert lines.read[-1]["message"] == "GET (no route) 200"


async def test_the_last_count_is_told_at_the_end(lines: Lines) -> None:
    log = RequestLog(1)
    edge = RequestEdge([log])
    for _ in range(3):
        log.on_request_ended(ended(0.0))
    edge.close()
    edge.close()
    assert [line.get("num_left_out") for line in lines.read] == [None, 2]


@pytest.mark.parametrize("is_on", [True, False])
def test_the_flag_turns_it_off(lines: Lines, is_on: bool) -> None:
    engine = EngineConfig.from_kwargs(model_dir="nowhere")
    edge = build_edge(ServerConfig(engine=engine, request_log=is_on, log_prompts=True), None)
    with edge.handling(RequestContext("r", "http", "GET", edge, status=200)):
        pass
    assert len(lines.read) == is_on
    assert edge.keeps_prompts is is_on


async def test_a_rate_of_0_leaves_the_counts_alone(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.request_log.SUMMARY_SECONDS", 0.01)
    edge = RequestEdge([RequestLog(0)])
    with edge.handling(RequestContext("r", "http", "GET", edge, status=200)):
        pass
    await until(lambda: "num_left_out" in lines.text)
    (line,) = lines.read
    assert line["message"] == "1 request has no line of its own: --request_log_rate is 0"
