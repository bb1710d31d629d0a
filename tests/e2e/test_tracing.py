"""Traces of the real server, as a collector beside it gets them."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from predictor.oip.schema import message_class
from tests.e2e.server import STEP_SECONDS, Server, until
from tests.otlp_collector import Collector, Received, collecting

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
MARKER = "sesame"
STAGES = ["receive", "queue", "prefill", "decode"]
SERVICE = "inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def server(tiny_model: Path, collector: Collector) -> Iterator[Server]:
    with Server(
        model_dir=tiny_model,
        dtype="float32",
        num_threads=1,
        num_kv_blocks=512,
        max_num_seqs=2,
        max_waiting_requests=4,
        otlp_traces_endpoint=collector.grpc_url,
        environ={"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_SERVICE_NAME": "tiny-a"},
    ) as made:
        yield made


def complete(server: Server, request_id: str, headers: dict[str, str] = PARENT, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": MARKER, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(
        f"{server.http_url}/v1/completions",
        json=body,
        headers={**headers, "x-request-id": request_id},
        timeout=STEP_SECONDS,
    )


def of(collector: Collector, request_id: str) -> Received:
    """The server's span of that request, once it has come."""

    def find() -> Received | None:
        found = [s for s in collector.servers if s.attributes["pagedserve.request_id"] == request_id]
        return found[0] if found else None

    return until(find, f"the span of {request_id}")


def message(**more: Any) -> Any:
    made = message_class("ModelInferRequest")(model_name="tiny", **more)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(MARKER.encode())
    made.parameters["max_tokens"].int64_param = 4
    return made


def test_a_completion_has_its_callers_span_above_and_its_stages_below(server: Server, collector: Collector) -> None:
    before = time.time_ns()
    answer = complete(server, "t1")
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "t1")
    span = of(collector, "t1")
    assert (span.name, span.trace_id, span.parent_id) == ("POST /v1/completions", TRACE_ID, SPAN_ID)
    assert before <= span.start < span.end <= time.time_ns()
    stages = collector.children(span)
    assert [stage.name for stage in stages] == STAGES
    assert all(first.end == second.start for first, second in itertools.pairwise(stages))
    assert span.start == stages[0].start
    assert stages[-1].end <= span.end
    assert all(stage.seconds > 0 for stage in stages)
    assert span.attributes["gen_ai.usage.output_tokens"] == 4
    assert span.resource["service.name"] == "tiny-a"
    assert abs(span.attributes["pagedserve.time_to_first_token"] - stages[1].seconds - stages[2].seconds) < 1e-4


def test_a_streamed_completion(server: Server, collector: Collector) -> None:
    assert "[DONE]" in complete(server, "t2", stream=True).text
    span = of(collector, "t2")
    assert (span.parent_id, span.status) == (SPAN_ID, "UNSET")
    assert [stage.name for stage in collector.children(span)] == STAGES


def test_oip_over_rest(server: Server, collector: Collector) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [MARKER]}
    httpx.post(
        f"{server.http_url}/v2/models/tiny/infer",
        json={"inputs": [tensor]},
        headers={**PARENT, "x-request-id": "t3"},
        timeout=STEP_SECONDS,
    ).raise_for_status()
    span = of(collector, "t3")
    assert (span.name, span.parent_id) == ("POST /v2/models/{model_name}/infer", SPAN_ID)
    assert [stage.name for stage in collector.children(span)] == STAGES


def test_grpc_and_the_messages_of_a_stream(server: Server, collector: Collector) -> None:
    metadata = (("x-request-id", "g"), *PARENT.items())
    with grpc.insecure_channel(server.grpc_address) as channel:
        kinds = {"response_deserializer": message_class("ModelInferResponse").FromString}
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", _bytes, **kinds)
        assert call(message(), metadata=metadata, timeout=STEP_SECONDS).outputs
        streamed = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", _bytes, message_class("ModelStreamInferResponse").FromString
        )
        assert len(list(streamed(iter([message(), message()]), metadata=metadata, timeout=STEP_SECONDS))) == 2
    for request_id, method in (("g", "ModelInfer"), ("g-1", "ModelStreamInfer"), ("g-2", "ModelStreamInfer")):
        span = of(collector, request_id)
        assert (span.name, span.trace_id, span.parent_id) == (f"{SERVICE}/{method}", TRACE_ID, SPAN_ID)
        assert span.attributes["rpc.response.status_code"] == "OK"
        assert [stage.name for stage in collector.children(span)] == STAGES


def _bytes(made: Any) -> bytes:
    data: bytes = made.SerializeToString()
    return data


def test_an_aborted_and_a_refused_request_have_their_status(server: Server, collector: Collector) -> None:
    body = {"model": "tiny", "prompt": MARKER, "max_tokens": 2000, "ignore_eos": True, "stream": True, "n": 4}
    headers = {**PARENT, "x-request-id": "aborted"}
    with httpx.stream(
        "POST", f"{server.http_url}/v1/completions", json=body, headers=headers, timeout=STEP_SECONDS
    ) as response:
        lines = response.iter_lines()
        next(lines)
        assert complete(server, "refused", n=3, temperature=1).status_code == 429
    aborted, refused = of(collector, "aborted"), of(collector, "refused")
    assert (aborted.status, aborted.attributes["error.type"]) == ("ERROR", "client_disconnected")
    assert aborted.attributes["gen_ai.response.finish_reasons"] == ["error"] * 4
    assert [stage.name for stage in collector.children(aborted)] == STAGES
    assert (refused.status, refused.parent_id) == ("ERROR", SPAN_ID)
    assert refused.attributes.items() >= {"http.response.status_code": 429, "error.type": "OverloadedError"}.items()


def test_an_unsampled_parent_is_honoured_and_no_text_is_exported(server: Server, collector: Collector) -> None:
    assert complete(server, "unsampled", UNSAMPLED).status_code == 200
    assert complete(server, "after").status_code == 200
    of(collector, "after")
    assert all(span.attributes.get("pagedserve.request_id") != "unsampled" for span in collector.spans)
    assert collector.raw
    assert MARKER.encode() not in b"".join(collector.raw)


def test_a_preempted_request_tells_it_and_what_is_left_is_exported_at_the_end(
    tiny_model: Path, collector: Collector
) -> None:
    flags = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 8, "otlp_traces_endpoint": collector.grpc_url}
    with Server(model_dir=tiny_model, environ={"OTEL_BSP_SCHEDULE_DELAY": "600000"}, **flags) as server:
        # Two sequences that grow to more than half of the pool each.
        assert complete(server, "preempted", n=2, temperature=1, max_tokens=100).status_code == 200
        line = until(lambda: re.search(r"request_id=preempted .*", server.logs), "the line of the request")
        num_preemptions = int(re.findall(r" num_preemptions=(\d+)", line[0])[0])
        assert num_preemptions >= 1
        assert complete(server, "last").status_code == 200
        assert not [s for s in collector.servers if s.attributes["pagedserve.request_id"] == "last"]
        assert server.stop() == 0
    assert of(collector, "last").parent_id == SPAN_ID
    preempted = of(collector, "preempted")
    assert preempted.attributes["pagedserve.num_preemptions"] == num_preemptions
    *_, decode = collector.children(preempted)
    assert [name for name, _ in decode.events] == ["preempted", "resumed"] * num_preemptions
    assert all(decode.start <= moment <= decode.end for _, moment in decode.events)
