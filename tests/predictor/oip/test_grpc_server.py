"""OIP over gRPC, on the scripted engine."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from engine.errors import ConfigError
from predictor import bodies
from predictor.model import PagedModel
from predictor.oip import codec_grpc, plan
from predictor.oip.grpc_calls import _details
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.schema import ModelInferRequest, message_class
from tests.fake_engine import FakeEngine, text_script
from tests.predictor.oip.conftest import ABORT_SECONDS, Server, Shouting, until

Code = grpc.StatusCode


def text_message(*prompts: bytes, **more: Any) -> Any:
    message = ModelInferRequest(model_name="model", **more)
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[len(prompts)])
    tensor.contents.bytes_contents.extend(prompts)
    return message


def raw_message(*prompts: bytes) -> Any:
    message = ModelInferRequest(model_name="model")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[len(prompts)])
    message.raw_input_contents.append(b"".join(struct.pack("<I", len(p)) + p for p in prompts))
    return message


def contents_of(response: Any) -> dict[str, list[Any]]:
    values = {}
    for output in response.outputs:
        fields = [list(field) for _, field in output.contents.ListFields()]
        assert len(fields) <= 1
        values[output.name] = fields[0] if fields else []
    return values


@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_large_messages_are_read_off_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    threads: list[str] = []

    def recorded(module: Any, name: str) -> None:
        original = getattr(module, name)

        def record(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return original(*arguments)

        monkeypatch.setattr(module, name, record)

    async def infer() -> set[str]:
        threads.clear()
        message = text_message(b"Hi")
        if is_stream:
            message.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
            call = server.grpc.stream()
            await call.write(message)
            await call.done_writing()
            assert not any([response.error_message async for response in call])
        else:
            await server.grpc.call("ModelInfer", message)
        return set(threads)

    recorded(codec_grpc, "check_shape")
    recorded(plan, "tensor_from")
    assert await infer() == {threading.current_thread().name}
    monkeypatch.setattr(bodies, "MAX_INLINE_BODY", 0)
    used = await infer()
    assert used
    assert all(name.startswith("json") for name in used)


async def test_typed_contents_are_answered_with_typed_contents(server: Server) -> None:
    response = await server.grpc.call("ModelInfer", text_message(b"Hi", id="7"))
    assert (response.model_name, response.model_version, response.id) == ("model", "1", "7")
    assert not response.raw_output_contents
    values = contents_of(response)
    assert values == {
        "text_output": [b"Hello, world!"],
        "finish_reason": [b"stop"],
        "num_input_tokens": [2],
        "num_output_tokens": [14],
        "output_ids": [*b"Hello, world!", 256],
        "cumulative_logprob": [-7.0],
    }
    shapes = {output.name: (output.datatype, list(output.shape)) for output in response.outputs}
    assert shapes["output_ids"] == ("INT32", [1, 14])
    assert shapes["cumulative_logprob"] == ("FP32", [1])


async def test_raw_contents_are_answered_with_raw_contents(server: Server) -> None:
    request = raw_message(b"Hi")
    request.outputs.add(name="num_output_tokens")
    request.outputs.add(name="text_output")
    response = await server.grpc.call("ModelInfer", request)
    assert [output.name for output in response.outputs] == ["num_output_tokens", "text_output"]
    assert list(response.raw_output_contents) == [struct.pack("<i", 14), struct.pack("<I", 13) + b"Hello, world!"]
    assert not any(output.HasField("contents") for output in response.outputs)


async def test_O4_text_that_is_no_utf8_keeps_its_bytes(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [0x61, 0xFF, 256]))
    response = await server.grpc.call("ModelInfer", text_message(b"Hi"))
    assert contents_of(response)["text_output"] == [b"a\xff"]


async def test_parameters_of_every_kind(serve: Callable[..., Any]) -> None:
    seen: list[Any] = []

    def script(request: Any, index: int) -> list[int]:
        seen.append(request.params)
        return [65]

    server = await serve(FakeEngine(script))
    request = text_message(b"Hi")
    request.parameters["temperature"].double_param = 0.25
    request.parameters["top_p"].string_param = "0.5"
    request.parameters["max_tokens"].int64_param = 3
    request.parameters["priority"].uint64_param = 1
    request.parameters["ignore_eos"].bool_param = True
    request.parameters["sequence_id"].int64_param = 0
    await server.grpc.call("ModelInfer", request)
    (params,) = seen
    assert (params.temperature, params.top_p, params.max_tokens, params.priority) == (0.25, 0.5, 3, 1)
    assert params.ignore_eos is True


def _with(change: Callable[[Any], Any]) -> Any:
    message = text_message(b"Hi")
    change(message)
    return message


def _both(message: Any) -> None:
    message.raw_input_contents.append(b"\x02\x00\x00\x00Hi")


def _neither(message: Any) -> None:
    message.inputs[0].ClearField("contents")


def _raw_count(message: Any) -> None:
    _neither(message)
    message.raw_input_contents.extend([b"\x02\x00\x00\x00Hi"] * 2)


BAD_MESSAGES = [
    ("O9", _with(_both), "beside 'raw_input_contents'"),
    ("O9", _with(_neither), "neither"),
    ("O9", _with(_raw_count), "2 entries for 1 inputs"),
    ("O2", ModelInferRequest(model_name="model"), "at least one"),
    ("O2", _with(lambda m: m.inputs[0].shape.__setitem__(0, 3)), "3 elements, but data for 1"),
    ("O2", _with(lambda m: m.inputs[0].shape.__setitem__(0, -1)), "-1"),
    ("O5", raw_message() and _with(lambda m: (_neither(m), m.raw_input_contents.append(b"\x0a\x00\x00\x00abc"))), "10"),
    ("wrong field", _with(lambda m: m.inputs[0].contents.int_contents.append(1)), "'bytes_contents' only"),
    ("datatype", _with(lambda m: setattr(m.inputs[0], "datatype", "STRING")), "datatype 'STRING'"),
    ("no datatype", _with(lambda m: setattr(m.inputs[0], "datatype", "")), "datatype ''"),
    ("no name", _with(lambda m: setattr(m.inputs[0], "name", "")), "name"),
    ("typed FP16", _with(lambda m: setattr(m.inputs[0], "datatype", "FP16")), "raw_input_contents"),
    ("unknown input", _with(lambda m: setattr(m.inputs[0], "name", "prompt")), "unknown input 'prompt'"),
    ("unknown output", _with(lambda m: m.outputs.add(name="text")), "unknown output 'text'"),
    ("unset parameter", _with(lambda m: m.parameters["seed"]), "'seed' of the request has no value"),
    ("unknown parameter", _with(lambda m: setattr(m.parameters["tempo"], "int64_param", 1)), "'tempo'"),
    ("sequence", _with(lambda m: setattr(m.parameters["sequence_start"], "bool_param", True)), "'sequence_start'"),
    ("V5", _with(lambda m: setattr(m.parameters["max_tokens"], "int64_param", 0)), "max_tokens"),
    ("not UTF-8", text_message(b"\xff"), "UTF-8"),
    ("V1", text_message(b""), "empty"),
    ("V6", text_message(b"x" * 256), "context"),
    ("no message", b"\xff\xff\xff", "not a valid ModelInferRequest"),
]


@pytest.mark.parametrize(
    ("message", "text"), [case[1:] for case in BAD_MESSAGES], ids=[f"{i}-{c[0]}" for i, c in enumerate(BAD_MESSAGES)]
)
async def test_O2_O5_O9_V1_V5_V6_a_bad_message_is_invalid_argument(server: Server, message: Any, text: str) -> None:
    error = await server.grpc.refusal("ModelInfer", message)
    assert error.code() is Code.INVALID_ARGUMENT
    assert text in str(error.details())
    assert server.engine.num_requests == 0
    assert (await server.grpc.call("ModelInfer", text_message(b"Hi"))).outputs


async def test_O10_a_message_over_the_limit_is_resource_exhausted(serve: Callable[..., Any]) -> None:
    server = await serve()
    error = await server.grpc.refusal("ModelInfer", text_message(b"x" * (9 * 2**20)))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    wide = await serve(max_message_length=10 * 2**20)
    error = await wide.grpc.refusal("ModelInfer", text_message(b"x" * (9 * 2**20)))
    assert error.code() is Code.INVALID_ARGUMENT  # now read, and longer than the context
    narrow = await serve(max_message_length=2000)
    error = await narrow.grpc.refusal("ModelInfer", text_message(b"x" * 2100))
    assert error.code() is Code.RESOURCE_EXHAUSTED


async def test_health_and_metadata(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(phase="loading"))
    ready = message_class("ModelReadyRequest")
    assert (await server.grpc.call("ServerLive")).live is True
    assert (await server.grpc.call("ServerReady")).ready is False
    assert (await server.grpc.call("ModelReady", ready(name="model"))).ready is False
    assert (await server.grpc.refusal("ModelInfer", text_message(b"Hi"))).code() is Code.UNAVAILABLE
    server.engine.finish_loading()
    assert (await server.grpc.call("ServerReady")).ready is True
    assert (await server.grpc.call("ModelReady", ready(name="model", version="1"))).ready is True
    metadata = await server.grpc.call("ServerMetadata")
    assert metadata.name == "pagedserve"
    assert "binary_tensor_data" in metadata.extensions
    model = await server.grpc.call("ModelMetadata", message_class("ModelMetadataRequest")(name="model"))
    assert (model.name, list(model.versions), model.platform) == ("model", ["1"], "pagedserve_llm")
    assert {(i.name, i.datatype, tuple(i.shape)) for i in model.inputs} >= {("input_ids", "INT64", (-1, -1))}
    assert model.properties["max_model_len"] == "256"
    server.engine.live = False
    assert (await server.grpc.call("ServerLive")).live is False


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ModelReady", message_class("ModelReadyRequest")(name="other")),
        ("ModelReady", message_class("ModelReadyRequest")(name="model", version="2")),
        ("ModelMetadata", message_class("ModelMetadataRequest")(name="model", version="2")),
        ("ModelInfer", ModelInferRequest(model_name="other")),
        ("ModelInfer", ModelInferRequest(model_name="model", model_version="2")),
        ("RepositoryModelLoad", message_class("RepositoryModelLoadRequest")(model_name="other")),
        ("RepositoryModelUnload", message_class("RepositoryModelUnloadRequest")(model_name="other")),
    ],
)
async def test_O12_O13_an_unknown_model_or_version_is_not_found(server: Server, method: str, request_: Any) -> None:
    assert (await server.grpc.refusal(method, request_)).code() is Code.NOT_FOUND


async def test_a_long_name_of_many_bytes_is_not_found_too(server: Server) -> None:
    error = await server.grpc.refusal("ModelInfer", ModelInferRequest(model_name="😀" * 1000))
    assert error.code() is Code.NOT_FOUND


def test_details_are_cut_by_their_percent_encoded_length() -> None:
    assert _details("no model") == "no model"
    assert _details("x" * 5000) == "x" * 4096
    assert _details("😀" * 1000) == "😀" * 341
    assert _details("%" * 5000) == "%" * 1365


async def test_an_id_too_long_is_refused(server: Server) -> None:
    error = await server.grpc.refusal("ModelInfer", text_message(b"Hi", id="i" * 1025))
    assert error.code() is Code.INVALID_ARGUMENT
    assert "'id'" in str(error.details())
    assert (await server.grpc.call("ModelInfer", text_message(b"Hi", id="é" * 1024))).id == "é" * 1024


async def test_O13_the_served_version_infers(server: Server) -> None:
    assert (await server.grpc.call("ModelInfer", text_message(b"Hi", model_version="1"))).outputs


@pytest.mark.parametrize("verb", ["Load", "Unload"])
async def test_O12_repository_verbs_are_unimplemented(server: Server, verb: str) -> None:
    for field in ("model_name", "triton_model_name"):
        request = message_class(f"RepositoryModel{verb}Request")(**{field: "model"})
        assert (await server.grpc.refusal(f"RepositoryModel{verb}", request)).code() is Code.UNIMPLEMENTED
    assert (await server.grpc.call("ModelInfer", text_message(b"Hi"))).outputs


async def test_M6_a_full_queue_is_resource_exhausted(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=1)
    first = server.grpc.call("ModelInfer", text_message(b"Hi"))
    await until(lambda: server.engine.num_waiting > 0)
    error = await server.grpc.refusal("ModelInfer", text_message(b"Hi"))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    metadata = dict(error.trailing_metadata())
    assert int(metadata["retry-after"]) >= 1
    assert int(metadata["grpc-retry-pushback-ms"]) == 1000 * int(metadata["retry-after"])
    server.engine.release()
    assert (await first).outputs


async def test_M7_fifty_calls_at_once_with_room_for_ten(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=10)
    calls = [asyncio.ensure_future(_code(server.grpc.call("ModelInfer", text_message(b"Hi")))) for _ in range(50)]
    await until(lambda: sum(call.done() for call in calls) == 40)
    assert server.engine.num_waiting == 10
    assert (await server.grpc.call("ServerLive")).live
    server.engine.release()
    codes = [await call for call in calls]
    assert (codes.count(Code.OK), codes.count(Code.RESOURCE_EXHAUSTED)) == (10, 40)


async def _code(call: Any) -> Any:
    return await call.code()


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_client_that_goes_away_aborts_its_request(serve: Callable[..., Any], how: str) -> None:
    server = await serve(FakeEngine(text_script("x" * 1000), pause_after=2))
    # NOTE: within the deadline the call has to come to the engine.
    call = server.grpc.call("ModelInfer", text_message(b"a", b"b"), timeout=5.0 if how == "deadline" else None)
    await until(lambda: server.engine.num_requests == 2)
    if how == "cancel":
        call.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call
    await until(lambda: server.engine.num_requests == 0, ABORT_SECONDS)
    assert len(server.engine.aborted) == 2


async def test_the_timeout_parameter_is_a_deadline(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    request = text_message(b"Hi")
    request.parameters["timeout"].int64_param = 20_000
    assert (await server.grpc.refusal("ModelInfer", request)).code() is Code.DEADLINE_EXCEEDED
    assert server.engine.num_requests == 0


async def test_an_engine_that_dies_is_unavailable(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(fail_after=2))
    assert (await server.grpc.refusal("ModelInfer", text_message(b"Hi"))).code() is Code.UNAVAILABLE


async def test_an_unexpected_exception_is_a_plain_internal(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PagedModel):
        async def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> Any:
            raise KeyError("a secret")

    server = await serve(model_class=Broken)
    error = await server.grpc.refusal("ModelInfer", text_message(b"Hi"))
    assert error.code() is Code.INTERNAL
    assert "secret" not in str(error.details())
    assert "a secret" in caplog.text


async def test_preprocess_and_postprocess_of_a_subclass_take_effect(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt.encode(), 256]), model_class=Shouting)
    for message in (text_message(b"abc"), raw_message(b"abc")):
        response = await server.grpc.call("ModelInfer", message, metadata=(("x-suffix", "d"),))
        if response.raw_output_contents:
            assert response.raw_output_contents[0][4:] == b"ABCD"
        else:
            assert contents_of(response) == {"text_output": [b"ABCD"]}


async def test_a_port_in_use_is_refused_with_a_clear_message(server: Server) -> None:
    taken = GrpcServer(server.service, server.model, 0, host="127.0.0.1")
    await taken.start()
    second = GrpcServer(server.service, server.model, taken.port, host="127.0.0.1")
    with pytest.raises(ConfigError, match=f"{taken.port}.*--grpc_port"):
        await second.start()
    await taken.stop(0)
    await taken.stop(0)


async def test_O10_an_answer_over_the_limit_is_resource_exhausted(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 200)), max_message_length=2000)
    request = text_message(*[b"Hi"] * 8)
    request.parameters["max_tokens"].int64_param = 200
    assert len(request.SerializeToString()) < 2000
    error = await server.grpc.refusal("ModelInfer", request)
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert (await server.grpc.call("ModelInfer", text_message(b"Hi"))).outputs
