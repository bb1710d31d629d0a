"""OIP over HTTP, on the scripted engine."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine.errors import RequestAbortedError
from predictor.kserve_adapter import InferOutput, InferRequest, InferResponse
from predictor.model import PagedModel
from tests.fake_engine import FakeEngine, text_script
from tests.predictor.oip.conftest import Server, until

HEADER = "Inference-Header-Content-Length"


def text_request(*prompts: str, **more: Any) -> dict[str, Any]:
    tensor = {"name": "text_input", "shape": [len(prompts)], "datatype": "BYTES", "data": list(prompts)}
    return {"inputs": [tensor], **more}


def outputs_of(body: dict[str, Any]) -> dict[str, Any]:
    return {output["name"]: output["data"] for output in body["outputs"]}


async def test_infer_answers_with_every_output_but_logprobs(server: Server) -> None:
    response = await server.infer(text_request("Hi", id="42"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert (body["model_name"], body["model_version"], body["id"]) == ("model", "1", "42")
    ids = [*b"Hello, world!", 256]
    assert body["outputs"] == [
        {"name": "text_output", "shape": [1], "datatype": "BYTES", "data": ["Hello, world!"]},
        {"name": "finish_reason", "shape": [1], "datatype": "BYTES", "data": ["stop"]},
        {"name": "num_input_tokens", "shape": [1], "datatype": "INT32", "data": [2]},
        {"name": "num_output_tokens", "shape": [1], "datatype": "INT32", "data": [14]},
        {"name": "output_ids", "shape": [1, 14], "datatype": "INT32", "data": ids},
        {"name": "cumulative_logprob", "shape": [1], "datatype": "FP32", "data": [-7.0]},
    ]


async def test_no_id_no_id(server: Server) -> None:
    assert "id" not in (await server.infer(text_request("Hi"))).json()


async def test_an_id_too_long_is_refused(server: Server) -> None:
    response = await server.infer(text_request("Hi", id="i" * 1025))
    assert response.status_code == 400
    assert "'id'" in response.json()["error"]
    assert (await server.infer(text_request("Hi", id="i" * 1024))).json()["id"] == "i" * 1024


async def test_a_null_model_name_is_none(server: Server) -> None:
    assert (await server.infer(text_request("Hi", model_name=None))).status_code == 200


async def test_an_empty_id_comes_back(server: Server) -> None:
    assert (await server.infer(text_request("Hi", id=""))).json()["id"] == ""


async def test_rows_are_prompt_major_and_output_ids_are_padded(serve: Callable[..., Any]) -> None:
    def script(request: Any, index: int) -> list[int]:
        return [*f"{request.prompt}{'x' * index}".encode(), 256]

    server = await serve(FakeEngine(script))
    response = await server.infer(text_request("a", "bc", parameters={"n": 2}))
    outputs = outputs_of(response.json())
    assert outputs["text_output"] == ["a", "ax", "bc", "bcx"]
    assert outputs["num_input_tokens"] == [1, 1, 2, 2]
    assert outputs["num_output_tokens"] == [2, 3, 3, 4]
    ids = next(o for o in response.json()["outputs"] if o["name"] == "output_ids")
    assert ids["shape"] == [4, 4]
    assert ids["data"][:8] == [97, 256, -1, -1, 97, 120, 256, -1]


async def test_default_max_tokens_is_16(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100)))
    outputs = outputs_of((await server.infer(text_request("Hi"))).json())
    assert (outputs["num_output_tokens"], outputs["finish_reason"]) == ([16], ["length"])


async def test_outputs_come_as_asked(server: Server) -> None:
    request = text_request("Hi", outputs=[{"name": "num_output_tokens"}, {"name": "text_output"}])
    body = (await server.infer(request)).json()
    assert [output["name"] for output in body["outputs"]] == ["num_output_tokens", "text_output"]


async def test_logprobs_come_when_the_parameter_is_set(server: Server) -> None:
    body = (await server.infer(text_request("Hi", parameters={"logprobs": 1, "max_tokens": 1}))).json()
    (row,) = outputs_of(body)["logprobs"]
    top = {"token": "H", "id": 72, "logprob": -0.5}
    assert orjson.loads(row) == [{"token": "H", "id": 72, "logprob": -0.5, "top": [top]}]


async def test_sampling_parameters_one_a_prompt(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100)))
    request = text_request("a", "b", parameters={"ignore_eos": "true"})
    tensor = {"name": "sampling_parameters", "shape": [2], "datatype": "BYTES"}
    request["inputs"].append({**tensor, "data": ['{"max_tokens": 3, "temperature": 0}', '{"max_tokens": 5}']})
    outputs = outputs_of((await server.infer(request)).json())
    assert outputs["num_output_tokens"] == [3, 5]


async def test_input_ids_with_lengths(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt_token_ids, 256]))
    ids = {"name": "input_ids", "shape": [2, 3], "datatype": "INT64", "data": [[65, 66, 0], [67, 68, 69]]}
    lengths = {"name": "input_lengths", "shape": [2], "datatype": "INT32", "data": [2, 3]}
    outputs = outputs_of((await server.infer({"inputs": [ids, lengths]})).json())
    assert outputs["text_output"] == ["AB", "CDE"]
    flat = {"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [65, 66]}
    assert outputs_of((await server.infer({"inputs": [flat]})).json())["text_output"] == ["AB"]


async def test_the_prompt_comes_before_the_text_when_not_excluded(server: Server) -> None:
    request = text_request("Say: ")
    request["inputs"].append({"name": "exclude_input_in_output", "shape": [1], "datatype": "BOOL", "data": [False]})
    assert outputs_of((await server.infer(request)).json())["text_output"] == ["Say: Hello, world!"]
    ids = {"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [65, 66]}
    request["inputs"][0] = ids
    assert outputs_of((await server.infer(request)).json())["text_output"] == ["ABHello, world!"]


async def test_binary_data_in_and_out(server: Server) -> None:
    raw = struct.pack("<I", 2) + b"Hi"
    head = {
        "inputs": [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        ],
        "outputs": [
            {"name": "text_output"},
            {"name": "num_output_tokens", "parameters": {"binary_data": True}},
            {"name": "finish_reason", "parameters": {"binary_data": False}},
        ],
        "parameters": {"binary_data_output": True},
    }
    head_bytes = orjson.dumps(head)
    response = await server.infer(head_bytes + raw, headers={HEADER: str(len(head_bytes))})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[HEADER])
    document, binary = orjson.loads(response.content[:length]), response.content[length:]
    assert document["outputs"] == [
        {"name": "text_output", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 17}},
        {"name": "num_output_tokens", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
        {"name": "finish_reason", "shape": [1], "datatype": "BYTES", "data": ["stop"]},
    ]
    assert binary == struct.pack("<I", 13) + b"Hello, world!" + struct.pack("<i", 14)


async def test_O4_text_that_is_no_utf8_is_replaced_in_json_and_exact_in_binary(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [0x61, 0xFF, 0x62, 0xE4, 0xBD, 256]))
    outputs = outputs_of((await server.infer(text_request("Hi"))).json())
    assert outputs["text_output"] == ["a\ufffdb\ufffd"]
    wish = [{"name": "text_output", "parameters": {"binary_data": True}}]
    response = await server.infer(text_request("Hi", outputs=wish))
    assert response.content[int(response.headers[HEADER]) :] == struct.pack("<I", 5) + b"a\xffb\xe4\xbd"


BAD_REQUESTS = [
    ("O1", text_request("a") | {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": "abc"}]}),
    ("O2", {"inputs": []}),
    ("O2", {}),
    ("O2", {"inputs": [{"name": "text_input", "shape": [3], "datatype": "BYTES", "data": ["a", "b"]}]}),
    ("O2", {"inputs": [{"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]}),
    ("O3", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "FP16", "data": [1.0]}]}),
    ("O3", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BF16", "data": [1.0]}]}),
    ("V1", text_request("")),
    ("V1", {"inputs": [{"name": "input_ids", "shape": [1, 0], "datatype": "INT32", "data": []}]}),
    ("V2", {"inputs": [{"name": "input_ids", "shape": [2], "datatype": "INT64", "data": [5, 999999]}]}),
    ("V2", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT64", "data": [-1]}]}),
    ("V3", text_request("a", parameters={"logit_bias": '{"999999": 1}'})),
    ("V3", text_request("a", parameters={"logit_bias": '{"x": 1}'})),
    ("V3", text_request("a", parameters={"logit_bias": '{"5": 101}'})),
    ("V5", text_request("a", parameters={"max_tokens": 0})),
    ("V6", text_request("x" * 256)),
    ("V6", text_request("x" * 257)),
    ("unknown input", {"inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
    ("unknown output", text_request("a", outputs=[{"name": "text"}])),
    ("unknown parameter", text_request("a", parameters={"tempo": 1})),
    ("unknown key", text_request("a", model="x")),
    ("duplicate input", {"inputs": text_request("a")["inputs"] * 2}),
    ("duplicate output", text_request("a", outputs=[{"name": "text_output"}] * 2)),
    ("list as a parameter", text_request("a", parameters={"stop": ["x"]})),
    ("sequence", text_request("a", parameters={"sequence_id": 5})),
    ("id", text_request("a", id=5)),
    ("other model", text_request("a", model_name="other")),
    ("logprobs not asked", text_request("a", outputs=[{"name": "logprobs"}])),
    ("both prompts", {"inputs": [*text_request("a")["inputs"], {
        "name": "input_ids", "shape": [1], "datatype": "INT32", "data": [1]}]}),
    ("stream", {"inputs": [*text_request("a")["inputs"], {
        "name": "stream", "shape": [1], "datatype": "BOOL", "data": [True]}]}),
    ("input parameter", {"inputs": [{**text_request("a")["inputs"][0], "parameters": {"content_type": "str"}}]}),
    ("output parameter", text_request("a", outputs=[{"name": "text_output", "parameters": {"classification": 3}}])),
    ("binary wish", text_request("a", outputs=[{"name": "text_output", "parameters": {"binary_data": 1}}])),
    ("binary without header", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES",
                                           "parameters": {"binary_data_size": 5}}]}),
    ("int in BYTES", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [5]}]}),
    ("datatype", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "STRING", "data": ["a"]}]}),
    ("float id", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT32", "data": [5.0]}]}),
    ("wide id", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT32", "data": [2**31]}]}),
    ("lengths", {"inputs": [{"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [5, 6]},
                            {"name": "input_lengths", "shape": [1], "datatype": "INT32", "data": [3]}]}),
    ("n differs", {"inputs": [*text_request("a", "b")["inputs"], {
        "name": "sampling_parameters", "shape": [2], "datatype": "BYTES", "data": ['{"n": 1}', '{"n": 2}']}]}),
    ("both places", {**text_request("a", parameters={"seed": 1}), "inputs": [*text_request("a")["inputs"], {
        "name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"seed": 1}']}]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "body"), BAD_REQUESTS, ids=[f"{i}-{case}" for i, (case, _) in enumerate(BAD_REQUESTS)]
)
async def test_O1_O2_O3_V1_V2_V3_V5_V6_a_bad_request_is_400_and_the_engine_goes_on(
    server: Server, case: str, body: dict[str, Any]
) -> None:
    response = await server.infer(body)
    assert response.status_code == 400, response.text
    assert list(response.json()) == ["error"]
    assert isinstance(response.json()["error"], str)
    assert response.json()["error"]
    assert server.engine.num_requests == 0
    assert (await server.infer(text_request("Hi"))).status_code == 200


BINARY_CASES = [
    ("O5", "BYTES", [1], struct.pack("<I", 10) + b"abc"),
    ("O5", "BYTES", [1], b"\x01\x00"),
    ("O5", "BYTES", [1], (struct.pack("<I", 1) + b"a") * 2),
    ("O5", "BYTES", [2], struct.pack("<I", 1) + b"a"),
    ("O6", "INT64", [1], b"\x00" * 7),
    ("O6", "INT64", [1], b"\x00" * 16),
    ("O6", "BOOL", [1], b"\x02"),
]


@pytest.mark.parametrize(("case", "datatype", "shape", "raw"), BINARY_CASES)
async def test_O5_O6_malformed_binary_tensors_are_400(
    server: Server, case: str, datatype: str, shape: list[int], raw: bytes
) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
    head = orjson.dumps({"inputs": [tensor]})
    response = await server.infer(head + raw, headers={HEADER: str(len(head))})
    assert response.status_code == 400
    assert "'x'" in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "size", "tail"),
    [
        ("{}", 6, b"\x01\x00\x00\x00a"),
        ("{}", 4, b"\x01\x00\x00\x00a"),
        ("{}", -1, b"\x01\x00\x00\x00a"),
        ("{}", "5", b"\x01\x00\x00\x00a"),
        ("99999", 5, b"\x01\x00\x00\x00a"),
        ("-5", 5, b"\x01\x00\x00\x00a"),
        ("five", 5, b"\x01\x00\x00\x00a"),
        ("1", 5, b"\x01\x00\x00\x00a"),
    ],
)
async def test_binary_sizes_must_be_those_of_the_body(server: Server, header: str, size: Any, tail: bytes) -> None:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    head = orjson.dumps({"inputs": [tensor]})
    response = await server.infer(head + tail, headers={HEADER: header.format(len(head))})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"inputs": 1}', b"1e999"]
)
async def test_what_is_no_json_object_is_400(server: Server, body: bytes) -> None:
    response = await server.infer(body)
    assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_a_body_over_the_bound_is_413_and_a_compressed_one_415(server: Server) -> None:
    assert (await server.infer(b" " * (2**20 + 1))).status_code == 413
    response = await server.infer(b"{}", headers={"content-encoding": "gzip"})
    assert (response.status_code, list(response.json())) == (415, ["error"])


async def test_V7_max_tokens_is_clamped_to_the_context(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("y" * 500)))
    body = (await server.infer(text_request("x" * 250, parameters={"max_tokens": 10}))).json()
    assert outputs_of(body)["num_output_tokens"] == [6]
    assert outputs_of(body)["finish_reason"] == ["length"]


async def test_V5_null_max_tokens_is_the_rest_of_the_context(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("y" * 500)))
    request = text_request("x" * 200)
    tensor = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"max_tokens": null}']}
    request["inputs"].append(tensor)
    assert outputs_of((await server.infer(request)).json())["num_output_tokens"] == [56]


async def test_V6_a_prompt_of_one_less_than_the_context_gives_one_token(server: Server) -> None:
    assert outputs_of((await server.infer(text_request("x" * 255))).json())["num_output_tokens"] == [1]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/model", 200),
        ("/v2/models/model/versions/1", 200),
        ("/v2/models/model/ready", 200),
        ("/v2/models/model/versions/1/ready", 200),
        ("/v2/models/model/versions/2", 404),
        ("/v2/models/model/versions/2/ready", 404),
        ("/v2/models/other", 404),
        ("/v2/models/other/ready", 404),
        ("/v2/models/org/alias", 404),
    ],
)
async def test_O13_version_paths(server: Server, path: str, status: int) -> None:
    response = await server.http.get(path)
    assert response.status_code == status
    if status == 404:
        assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/model/versions/1/infer", 200),
        ("/v2/models/model/versions/2/infer", 404),
        ("/v2/models/other/infer", 404),
    ],
)
async def test_O13_infer_on_version_paths(server: Server, path: str, status: int) -> None:
    assert (await server.infer(text_request("Hi"), path)).status_code == status


async def test_metadata(server: Server) -> None:
    for path in ("/v2", "/v2/"):
        body = (await server.http.get(path)).json()
        assert body["name"] == "pagedserve"
        assert body["version"]
        assert "binary_tensor_data" in body["extensions"]
    assert (await server.http.get("/v2/models")).json() == {"models": ["model"]}
    body = (await server.http.get("/v2/models/model")).json()
    assert (body["name"], body["versions"], body["platform"]) == ("model", ["1"], "pagedserve_llm")
    assert {"name": "text_input", "datatype": "BYTES", "shape": [-1]} in body["inputs"]
    assert {"name": "output_ids", "datatype": "INT32", "shape": [-1, -1]} in body["outputs"]
    assert body["properties"]["max_model_len"] == "256"


async def test_a_model_that_loads_is_not_ready_and_infers_nothing(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(phase="loading"))
    response = await server.http.get("/v2/models/model/ready")
    assert (response.status_code, response.json()) == (503, {"name": "model", "ready": False})
    assert (await server.http.get("/v2/models/model")).json()["properties"] == {}
    response = await server.infer(text_request("Hi"))
    assert (response.status_code, list(response.json())) == (503, ["error"])
    server.engine.finish_loading()
    assert (await server.http.get("/v2/models/model/ready")).json() == {"name": "model", "ready": True}


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_O12_repository_verbs_have_a_defined_answer(server: Server, verb: str) -> None:
    response = await server.http.post(f"/v2/repository/models/model/{verb}")
    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert (await server.http.post(f"/v2/repository/models/other/{verb}")).status_code == 404
    assert (await server.infer(text_request("Hi"))).status_code == 200
    (entry,) = (await server.http.post("/v2/repository/index")).json()
    assert entry == {"name": "model", "version": "1", "state": "READY", "reason": ""}


async def test_M6_a_full_queue_is_429_with_retry_after(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=1)
    first = asyncio.create_task(server.infer(text_request("Hi")))
    await until(lambda: server.engine.num_waiting > 0)
    response = await server.infer(text_request("Hi"))
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert list(response.json()) == ["error"]
    server.engine.release()
    assert (await first).status_code == 200


async def test_a_batch_is_taken_whole_or_not_at_all(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=4)
    first = asyncio.create_task(server.infer(text_request("a")))
    await until(lambda: server.engine.num_waiting > 0)
    assert (await server.infer(text_request("a", "b", parameters={"n": 2}))).status_code == 429
    assert server.engine.num_requests == 1
    server.engine.release()
    assert (await first).status_code == 200


async def test_timeout_is_a_deadline_in_microseconds(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    response = await server.infer(text_request("Hi", parameters={"timeout": 20_000}))
    assert (response.status_code, list(response.json())) == (504, ["error"])
    assert server.engine.num_requests == 0


async def test_an_engine_that_dies_is_503_and_so_is_an_abort(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(fail_after=2))
    assert (await server.infer(text_request("Hi"))).status_code == 503
    server = await serve(FakeEngine(admitting=False))
    waiting = asyncio.create_task(server.infer(text_request("a", "b")))
    await until(lambda: server.engine.num_requests == 2)
    server.engine.abort_all(RequestAbortedError("the drain timeout has passed"))
    response = await waiting
    assert (response.status_code, response.json()) == (503, {"error": "the drain timeout has passed"})


async def test_cancelling_the_call_aborts_every_prompt(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    waiting = asyncio.create_task(server.infer(text_request("a", "b")))
    await until(lambda: server.engine.num_requests == 2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert server.engine.num_requests == 0
    assert len(server.engine.aborted) == 2


async def test_an_unexpected_exception_is_a_plain_500_with_a_logged_traceback(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PagedModel):
        async def preprocess(self, payload: Any, headers: Any = None) -> Any:
            raise KeyError("a secret")

    server = await serve(model_class=Broken)
    response = await server.infer(text_request("Hi"))
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "a secret" in caplog.text


class Shouting(PagedModel):
    """A custom predictor: prompts are rewritten before, texts after."""

    async def preprocess(self, payload: InferRequest, headers: Any = None) -> InferRequest:
        (text,) = payload.get_input_by_name("text_input").as_string()
        assert payload.get_input_by_name("text_input").as_numpy().tolist() == [text.encode()]
        payload.inputs[0].data = [text + headers["x-suffix"]]
        return payload

    async def postprocess(self, result: InferResponse, headers: Any = None, response_headers: Any = None) -> Any:
        text = result.get_output_by_name("text_output").as_numpy()[0]
        result.outputs = [InferOutput("text_output", [1], "BYTES", [text.upper()])]
        return result


async def test_preprocess_and_postprocess_of_a_subclass_take_effect(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt.encode(), 256]), model_class=Shouting)
    response = await server.infer(text_request("abc"), headers={"x-suffix": "d"})
    assert outputs_of(response.json()) == {"text_output": ["ABCD"]}


async def test_wrong_methods_and_paths_answer_in_oips_form(server: Server) -> None:
    response = await server.http.get("/v2/models/model/infer")
    assert (response.status_code, list(response.json())) == (405, ["error"])
    response = await server.http.get("/v2/nothing")
    assert (response.status_code, list(response.json())) == (404, ["error"])


async def test_the_length_of_the_json_part_given_twice_is_400(server: Server) -> None:
    body = orjson.dumps(text_request("Hi"))
    lengths = [(HEADER, str(len(body)))]
    assert (await server.infer(body, headers=lengths)).status_code == 200
    response = await server.infer(body, headers=[*lengths, (HEADER, "0")])
    assert response.status_code == 400
    assert HEADER in response.json()["error"]
