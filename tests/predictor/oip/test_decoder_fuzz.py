"""Whatever comes, the decoders raise named errors only: valid requests with a few places changed, fixed seed."""

from __future__ import annotations

import asyncio
import copy
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from predictor.admission import Admission
from predictor.model import PagedModel
from predictor.oip import codec_grpc, codec_json
from predictor.oip.errors import INTERNAL_ERROR
from predictor.oip.generate import GenerateRequest, decode_generate
from predictor.oip.grpc_calls import parse_message
from predictor.oip.plan import InferencePlan, read_plan
from predictor.oip.schema import METHODS, ModelInferRequest, message_class
from predictor.oip.stream import FINAL_RESPONSE, answer_stream
from predictor.service import GenerationService
from tests.fake_engine import FakeEngine

FUZZ = settings(
    max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def tensor(name: str, datatype: str, shape: list[int], data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


DOCUMENTS: list[dict[str, Any]] = [
    {"id": "1", "inputs": [tensor("text_input", "BYTES", [2], ["a", "b"], parameters={})]},
    {
        "inputs": [
            tensor("text_input", "BYTES", [1], ["a"]),
            tensor("sampling_parameters", "BYTES", [1], ['{"temperature": 0.5, "stop": ["x"], "max_tokens": null}']),
        ],
        "parameters": {"seed": 5, "ignore_eos": "true", "logprobs": "1", "timeout": 1000, "binary_data_output": True},
        "outputs": [{"name": "logprobs"}, {"name": "output_ids", "parameters": {"binary_data": True}}],
    },
    {
        "inputs": [
            tensor("input_ids", "INT64", [2, 2], [[1, 2], [3, 4]]),
            tensor("input_lengths", "INT32", [2], [1, 2]),
            tensor("stream", "BOOL", [1], [False]),
            tensor("exclude_input_in_output", "BOOL", [1], [True]),
        ],
        "parameters": {"stop_token_ids": "[1]", "n": "2", "logit_bias": '{"1": 5}', "stop": '["a"]', "priority": 1},
    },
]
RAW_TEXT = struct.pack("<I", 1) + b"a" + struct.pack("<I", 2) + b"bc"
BINARY_DOCUMENT = {
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(RAW_TEXT)}},
        {"name": "stream", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
    ]
}


def messages() -> Iterator[Any]:
    typed = ModelInferRequest(model_name="m", id="1")
    typed.inputs.add(name="text_input", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"b"])
    typed.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(False)
    codec_grpc.encode_parameters(
        {"temperature": 0.5, "max_tokens": 3, "seed": "4", "ignore_eos": True}, typed.parameters
    )
    typed.outputs.add(name="text_output")
    yield typed
    ids = ModelInferRequest(model_name="m")
    ids.inputs.add(name="input_ids", datatype="INT64", shape=[1, 2]).contents.int64_contents.extend([1, 2])
    ids.inputs.add(name="input_lengths", datatype="INT32", shape=[1]).contents.int_contents.append(2)
    yield ids
    raw = ModelInferRequest(model_name="m", raw_input_contents=[RAW_TEXT, struct.pack("<I", 2) + b"{}"])
    raw.inputs.add(name="text_input", datatype="BYTES", shape=[2])
    raw.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    yield raw


MESSAGES = list(messages())

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(
        ["0.5", "true", "[1]", '["a"]', "{}", "[" * 2000, "INT64", "UINT8", "FP16", "9" * 30, 2**31, 2**62]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["n", "stop", "x"]), inner, max_size=2),
    max_leaves=5,
)
DROP = object()
changes = st.lists(st.tuples(st.integers(0, 1000), values | st.just(DROP)), min_size=1, max_size=3)
byte_changes = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255) | st.none()), min_size=1, max_size=4)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from places(node[key])


def changed(document: Any, edits: list[tuple[int, Any]]) -> Any:
    document = copy.deepcopy(document)
    for position, value in edits:
        every = list(places(document))
        if not every:
            break
        container, key = every[position % len(every)]
        if value is DROP:
            del container[key]
        else:
            container[key] = copy.deepcopy(value)
    return document


def changed_bytes(data: bytes, edits: list[tuple[int, int | None]]) -> bytes:
    """Bytes replaced, or cut out where the new one is None."""
    result = bytearray(data)
    for position, value in edits:
        at = position % max(1, len(result))
        result[at : at + 1] = b"" if value is None else bytes([value])
    return bytes(result)


def outcome_of_json(body: bytes, header: str | None) -> InferencePlan | RequestError:
    try:
        return read_plan(codec_json.decode_request(body, header, "m"))
    except RequestError as error:
        return error


def outcome_of_grpc(data: bytes) -> InferencePlan | RequestError:
    try:
        return read_plan(codec_grpc.decode_request(parse_message(ModelInferRequest, data)))
    except RequestError as error:
        return error


def test_the_requests_that_are_changed_are_valid() -> None:
    for document in DOCUMENTS:
        assert isinstance(outcome_of_json(orjson.dumps(document), None), InferencePlan)
    head = orjson.dumps(BINARY_DOCUMENT)
    assert isinstance(outcome_of_json(head + RAW_TEXT + b"\x00", str(len(head))), InferencePlan)
    for message in MESSAGES:
        assert isinstance(outcome_of_grpc(message.SerializeToString()), InferencePlan)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_changed_documents(number: int) -> None:
    @FUZZ
    @given(changes)
    def check(edits: list[tuple[int, Any]]) -> None:
        outcome_of_json(orjson.dumps(changed(DOCUMENTS[number], edits)), None)

    check()


@FUZZ
@given(changes, byte_changes, st.integers(-2, 2))
def test_changed_documents_with_changed_binary_data(
    edits: list[tuple[int, Any]], cuts: list[tuple[int, int | None]], off: int
) -> None:
    head = orjson.dumps(changed(BINARY_DOCUMENT, edits))
    outcome_of_json(head + changed_bytes(RAW_TEXT + b"\x00", cuts), str(len(head) + off))


@FUZZ
@given(byte_changes)
def test_changed_binary_data(cuts: list[tuple[int, int | None]]) -> None:
    head = orjson.dumps(BINARY_DOCUMENT)
    outcome_of_json(head + changed_bytes(RAW_TEXT + b"\x00", cuts), str(len(head)))


@FUZZ
@given(st.binary(max_size=100), st.none() | st.text(max_size=6) | st.integers(0, 120).map(str))
def test_any_bytes_as_a_body(body: bytes, header: str | None) -> None:
    outcome_of_json(body, header)


@FUZZ
@given(st.sampled_from([orjson.dumps(document) for document in DOCUMENTS]), byte_changes)
def test_changed_bytes_of_a_body(body: bytes, edits: list[tuple[int, int | None]]) -> None:
    outcome_of_json(changed_bytes(body, edits), None)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_changed_bytes_of_a_message(number: int) -> None:
    data = MESSAGES[number].SerializeToString()

    @FUZZ
    @given(byte_changes)
    def check(edits: list[tuple[int, int | None]]) -> None:
        outcome_of_grpc(changed_bytes(data, edits))

    check()


@FUZZ
@given(
    st.sampled_from(range(len(MESSAGES))),
    st.sampled_from(["BOOL", "INT8", "INT64", "UINT64", "FP16", "FP32", "BYTES", "", "x"]),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=3),
    st.sampled_from(["temperature", "max_tokens", "n", "timeout", "stop", "logprobs", "sequence_end", "unknown"]),
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=5),
)  # fmt: skip
def test_changed_fields_of_a_message(number: int, datatype: str, shape: list[int], name: str, value: Any) -> None:
    message = ModelInferRequest()
    message.CopyFrom(MESSAGES[number])
    if value is None:
        message.parameters.get_or_create(name)
    else:
        codec_grpc.encode_parameters({name: value}, message.parameters)
    outcome_of_grpc(message.SerializeToString())
    message.inputs[-1].datatype = datatype
    outcome_of_grpc(message.SerializeToString())
    message.inputs[-1].shape[:] = shape
    outcome_of_grpc(message.SerializeToString())


# --- generate ---

GENERATE: list[dict[str, Any]] = [
    {"text_input": "a", "parameters": {"details": True, "logprobs": 1, "stop": ["a", "b"], "top_p": 0, "n": "1"}},
    {"text_input": "a", "parameters": {"stop_token_ids": [1, 2], "logit_bias": {"1": 5.0}, "timeout": "1000"}},
]


def outcome_of_generate(body: bytes) -> GenerateRequest | RequestError:
    try:
        return decode_generate(body)
    except RequestError as error:
        return error


def test_the_generate_bodies_that_are_changed_are_valid() -> None:
    assert all(isinstance(outcome_of_generate(orjson.dumps(body)), GenerateRequest) for body in GENERATE)


@FUZZ
@given(st.sampled_from(GENERATE), changes)
def test_changed_generate_bodies(body: dict[str, Any], edits: list[tuple[int, Any]]) -> None:
    outcome_of_generate(orjson.dumps(changed(body, edits)))


@FUZZ
@given(st.sampled_from([orjson.dumps(body) for body in GENERATE]), byte_changes)
def test_changed_bytes_of_a_generate_body(body: bytes, edits: list[tuple[int, int | None]]) -> None:
    outcome_of_generate(changed_bytes(body, edits))


# --- every message, and the stream ---


@FUZZ
@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
def test_any_bytes_as_a_message_of_any_method(method: str, data: bytes) -> None:
    try:
        parse_message(message_class(METHODS[method].request), data)
    except RequestError as error:
        assert str(error)  # noqa: PT017  only this class may come


def stream_messages() -> Iterator[bytes]:
    """Valid requests of a stream, each with an id, of one response and of one a token."""
    for number, message in enumerate(MESSAGES):
        one = ModelInferRequest()
        one.CopyFrom(message)
        one.model_name, one.id = "model", f"valid-{number}"
        codec_grpc.encode_parameters({"max_tokens": 2}, one.parameters)
        yield one.SerializeToString()
    tokens = ModelInferRequest(model_name="model", id="tokens")
    tokens.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    tokens.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    codec_grpc.encode_parameters({"max_tokens": 3, "triton_enable_empty_final_response": True}, tokens.parameters)
    yield tokens.SerializeToString()


STREAM_MESSAGES = list(stream_messages())


async def responses_to(messages: list[bytes]) -> list[Any]:
    engine: Any = FakeEngine()
    admission = Admission(engine, max_waiting_requests=10_000, max_waiting_tokens=None)
    service = GenerationService(engine, admission, model_name="model")
    responses: list[Any] = []

    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    async def write(response: Any) -> None:
        responses.append(response.FromString(response.SerializeToString()))

    async with asyncio.timeout(60):
        await answer_stream(service, PagedModel(service), requests(), write, {})
    assert engine.num_requests == 0
    return responses


def finals(responses: list[Any]) -> list[Any]:
    return [r for r in responses if r.infer_response.parameters[FINAL_RESPONSE].bool_param]


def test_the_stream_messages_that_are_changed_are_valid() -> None:
    responses = asyncio.run(responses_to(STREAM_MESSAGES))
    assert not any(response.error_message for response in responses)
    assert len(finals(responses)) == len(STREAM_MESSAGES)


@settings(FUZZ, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(STREAM_MESSAGES), byte_changes), min_size=1, max_size=4))
def test_every_message_of_a_stream_is_answered_to_its_end(
    messages: list[tuple[bytes, list[tuple[int, int | None]]]],
) -> None:
    """Each message, whatever is in it, gets one final response, and none brings down the stream or another one."""
    sent = [changed_bytes(data, edits) for data, edits in messages]
    responses = asyncio.run(responses_to([*sent, STREAM_MESSAGES[0]]))
    assert len(finals(responses)) == len(sent) + 1
    assert not any(response.error_message == INTERNAL_ERROR for response in responses)
    good = [r for r in finals(responses) if r.infer_response.id == "valid-0" and not r.error_message]
    assert good


@settings(FUZZ, max_examples=200)
@given(
    st.sampled_from(range(len(STREAM_MESSAGES))),
    st.sampled_from(
        ["temperature", "max_tokens", "n", "seed", "top_k", "stop", "logit_bias", "triton_enable_empty_final_response"]
    ),
    st.booleans() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.floats(0, 2) | st.sampled_from(
        ["1", "true", "9" * 20, "[]", "{}", '{"5": 1}', "null"]),
)  # fmt: skip
def test_changed_parameters_of_a_stream_s_message(number: int, name: str, value: Any) -> None:
    message = ModelInferRequest.FromString(STREAM_MESSAGES[number])
    codec_grpc.encode_parameters({name: value}, message.parameters)
    responses = asyncio.run(responses_to([message.SerializeToString()]))
    assert len(finals(responses)) == 1
    assert not any(response.error_message == INTERNAL_ERROR for response in responses)
