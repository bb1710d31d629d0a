"""`ModelStreamInfer`, on the scripted engine."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import orjson
import pytest

from engine.errors import RequestAbortedError
from predictor.oip import stream as stream_module
from predictor.oip.exact_text import ExactText
from predictor.oip.schema import ModelInferRequest
from tests.fake_engine import FakeEngine, FakeTokenizer, text_script
from tests.predictor.oip.conftest import ABORT_SECONDS, Server, Shouting, until
from tests.predictor.oip.test_grpc_server import contents_of, raw_message, text_message


def streamed(message: Any, **parameters: Any) -> Any:
    """`message` with its tokens asked for one by one."""
    flag = message.inputs.add(name="stream", datatype="BOOL", shape=[1])
    if message.raw_input_contents:
        message.raw_input_contents.append(b"\x01")
    else:
        flag.contents.bool_contents.append(True)
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], field, value)
    return message


async def answers(server: Server, *messages: Any) -> list[Any]:
    async def requests() -> AsyncIterator[Any]:
        for message in messages:
            yield message

    return [response async for response in server.grpc.stream(requests())]


def texts(responses: list[Any]) -> list[bytes]:
    return [contents_of(r.infer_response)["text_output"][0] for r in responses]


def finals(responses: list[Any]) -> list[bool]:
    return [r.infer_response.parameters["triton_final_response"].bool_param for r in responses]


async def test_without_stream_a_request_has_one_response(server: Server) -> None:
    (response,) = await answers(server, text_message(b"Hi", id="5"))
    assert response.error_message == ""
    assert response.infer_response.id == "5"
    assert contents_of(response.infer_response)["text_output"] == [b"Hello, world!"]
    assert finals([response]) == [True]


async def test_with_stream_each_response_has_only_what_is_new(server: Server) -> None:
    responses = await answers(server, streamed(text_message(b"Hi", id="5"), logprobs=0))
    assert b"".join(texts(responses)) == b"Hello, world!"
    assert len(responses) == 14
    values = [contents_of(r.infer_response) for r in responses]
    assert [v["output_ids"] for v in values] == [[i] for i in [*b"Hello, world!", 256]]
    assert [v["num_output_tokens"] for v in values] == [[i] for i in range(1, 15)]
    assert {v["num_input_tokens"][0] for v in values} == {2}
    assert [v["finish_reason"][0] for v in values] == [b""] * 13 + [b"stop"]
    assert [v["cumulative_logprob"][0] for v in values] == [-0.5 * i for i in range(1, 15)]
    assert [orjson.loads(v["logprobs"][0])[0]["id"] for v in values] == [*b"Hello, world!", 256]
    assert finals(responses) == [False] * 13 + [True]
    assert {r.infer_response.id for r in responses} == {"5"}
    assert {r.infer_response.model_version for r in responses} == {"1"}


async def test_raw_contents_and_chosen_outputs(server: Server) -> None:
    request = streamed(raw_message(b"Hi"), max_tokens=2)
    request.outputs.add(name="text_output")
    responses = await answers(server, request)
    assert [list(r.infer_response.raw_output_contents) for r in responses] == [
        [struct.pack("<I", 1) + b"H"],
        [struct.pack("<I", 1) + b"e"],
    ]


async def test_the_prompt_comes_once_when_not_excluded(server: Server) -> None:
    request = streamed(text_message(b"Say: "))
    flag = request.inputs.add(name="exclude_input_in_output", datatype="BOOL", shape=[1])
    flag.contents.bool_contents.append(False)
    assert texts(await answers(server, request))[:2] == [b"Say: H", b"e"]


async def test_an_empty_final_response_when_asked_for(server: Server) -> None:
    request = streamed(text_message(b"Hi", id="5"), triton_enable_empty_final_response=True)
    responses = await answers(server, request)
    assert finals(responses) == [False] * 14 + [True]
    assert contents_of(responses[-2].infer_response)["finish_reason"] == [b"stop"]
    assert (responses[-1].infer_response.id, len(responses[-1].infer_response.outputs)) == ("5", 0)


async def test_T1_a_stop_string_is_never_streamed(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("abcDEFGHIJ")))
    responses = await answers(server, streamed(text_message(b"Hi"), stop="DEFGHIJ"))
    assert b"".join(texts(responses)) == b"abc"
    assert contents_of(responses[-1].infer_response)["finish_reason"] == [b"stop"]


async def test_O4_text_that_is_no_utf8_keeps_its_bytes(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [0x61, 0xFF, 0x62, 0xE4, 0xBD, 256]))
    assert b"".join(texts(await answers(server, streamed(text_message(b"Hi"))))) == b"a\xffb\xe4\xbd"


async def test_requests_interleave_by_id(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*(request.prompt * 5).encode(), 256], admitting=False))
    messages = [streamed(text_message(p.encode(), id=p)) for p in "ab"] + [text_message(b"c", id="c")]
    answering = asyncio.ensure_future(answers(server, *messages))
    await until(lambda: server.engine.num_requests == 3)
    server.engine.release()
    responses = await answering
    order = [r.infer_response.id for r in responses]
    for name in "ab":
        mine = [r for r in responses if r.infer_response.id == name]
        assert b"".join(texts(mine)) == name.encode() * 5
        assert finals(mine) == [False] * 5 + [True]
    assert order.index("b") < len(order) - 1 - order[::-1].index("a")
    assert order.count("c") == 1


async def test_a_failed_request_does_not_end_the_others(server: Server) -> None:
    bad = [
        streamed(text_message(b"a", b"b", id="two")),
        streamed(text_message(b"a", id="n"), n=2),
        streamed(text_message(b"", id="empty")),
        text_message(b"a", id="version", model_version="9"),
        ModelInferRequest(model_name="model", id="none"),
        b"\xff\xff\xff",
    ]
    responses = await answers(server, *bad, streamed(text_message(b"Hi", id="good")))
    errors = {r.infer_response.id: r.error_message for r in responses if r.error_message}
    assert set(errors) == {"two", "n", "empty", "version", "none", ""}
    assert "2 prompts" in errors["two"]
    assert "n = 2" in errors["n"]
    assert all(finals([r]) == [True] for r in responses if r.error_message)
    good = [r for r in responses if r.infer_response.id == "good"]
    assert b"".join(texts(good)) == b"Hello, world!"


async def test_an_aborted_request_ends_with_an_error_message(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 1000), pause_after=2))
    call = server.grpc.stream()
    await call.write(streamed(text_message(b"Hi", id="5"), max_tokens=50))
    first, second = await call.read(), await call.read()
    assert texts([first, second]) == [b"x", b"x"]
    server.engine.abort_all(RequestAbortedError("the drain timeout has passed"))
    third = await call.read()
    assert (third.error_message, third.infer_response.id) == ("the drain timeout has passed", "5")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_one_stream_lives_over_many_requests(server: Server) -> None:
    call = server.grpc.stream()
    for number in range(3):
        await call.write(text_message(b"Hi", id=str(number)))
        assert (await call.read()).infer_response.id == str(number)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_cancelling_the_stream_aborts_its_requests(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 1000), pause_after=2))
    call = server.grpc.stream()
    for name in "ab":
        await call.write(streamed(text_message(name.encode(), id=name), max_tokens=50))
    await call.read()
    await until(lambda: server.engine.num_requests == 2)
    call.cancel()
    await until(lambda: server.engine.num_requests == 0, ABORT_SECONDS)
    assert len(server.engine.aborted) == 2


async def test_requests_in_flight_are_bounded(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_REQUESTS_IN_FLIGHT", 2)
    server = await serve(FakeEngine(admitting=False))
    call = asyncio.create_task(answers(server, *[text_message(b"a", id=str(i)) for i in range(5)]))
    await until(lambda: server.engine.num_requests == 2)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert server.engine.num_requests == 2
    server.engine.release()
    assert len(await call) == 5


async def test_bytes_in_flight_are_bounded_while_nobody_reads(server: Server) -> None:
    reading, num_read, written = asyncio.Event(), 0, []
    num_freed = 0

    class Data(bytes):
        def __del__(self) -> None:
            nonlocal num_freed
            num_freed += 1

    async def requests() -> AsyncIterator[bytes]:
        nonlocal num_read
        for number in range(20):
            num_read += 1
            yield Data(text_message(b"x" * 5 * 2**20, id=str(number)).SerializeToString())

    async def write(message: Any) -> None:
        await reading.wait()
        written.append(message.infer_response.id)

    task = asyncio.ensure_future(stream_module.answer_stream(server.service, server.model, requests(), write, {}))
    await until(lambda: (num_read, num_freed) == (4, 3))
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert num_read == 4  # three of 5 MiB, and one that waits
    assert num_freed == 3
    reading.set()
    await task
    assert sorted(written, key=int) == [str(number) for number in range(20)]


async def test_a_message_over_the_bound_is_let_in_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_BYTES_IN_FLIGHT", 1)
    assert len(await answers(server, *[text_message(b"a", id=str(i)) for i in range(3)])) == 3


async def test_an_id_too_long_is_refused_and_not_repeated(server: Server) -> None:
    (response,) = await answers(server, text_message(b"a", id="i" * 5000))
    assert "'id'" in response.error_message
    assert response.infer_response.id == "i" * 1024


async def test_preprocess_and_postprocess_of_a_subclass_take_effect(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt.encode(), 256]), model_class=Shouting)

    async def requests() -> AsyncIterator[Any]:
        yield streamed(text_message(b"abc"))

    call = server.grpc.stream(requests(), metadata=(("x-suffix", "d"),))
    assert b"".join(texts([r async for r in call])) == b"ABCD"


def test_pieces_of_an_exact_text_add_up() -> None:
    exact = ExactText(FakeTokenizer(), skip_special_tokens=True)  # type: ignore[arg-type]
    steps = [
        ("a", b"a"),
        ("\ufffd", b"\xff"),
        ("", b"\xe4"),
        ("", b"\xbd"),
        ("\ufffdb", b"b"),
        ("", b"\xe4"),
        ("\ufffd", b""),
    ]
    assert [exact.push(text, list(raw)) for text, raw in steps] == [
        b"a", b"\xff", b"", b"", b"\xe4\xbdb", b"", b"\xe4",
    ]  # fmt: skip


async def test_M6_M7_a_full_queue_fails_one_request_of_the_stream_only(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=10)
    call = server.grpc.stream()
    for number in range(50):
        await call.write(streamed(text_message(b"Hi", id=str(number))))
    failed = [await call.read() for _ in range(40)]
    assert all("overloaded" in response.error_message for response in failed)
    assert len({response.infer_response.id for response in failed}) == 40
    assert server.engine.num_waiting == 10
    server.engine.release()
    await call.done_writing()
    rest = await remaining(call)
    assert not any(response.error_message for response in rest)
    assert sum(finals(rest)) == 10


async def test_the_servers_end_answers_what_runs_and_ends_streams_that_only_wait(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(pause_after=1))
    idle, busy = server.grpc.stream(), server.grpc.stream()
    await busy.write(streamed(text_message(b"Hi"), max_tokens=3))
    assert contents_of((await busy.read()).infer_response)["text_output"] == [b"H"]
    await idle.write(text_message(b"Hi", id="x"))
    await until(lambda: server.engine.num_requests == 2)
    stopping = asyncio.ensure_future(server.grpc_server.stop(1000.0))
    await until(server.grpc_server._closing.is_set)
    server.engine.resume()
    async with asyncio.timeout(60):
        await stopping
        assert finals(await remaining(busy))[-1] is True
        assert [r.infer_response.id for r in await remaining(idle)] == ["x"]
    for call in (idle, busy):
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def remaining(call: Any) -> list[Any]:
    """The responses up to the end of the call, whatever its status."""
    responses: list[Any] = []
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            responses.append(response)
    except grpc.aio.AioRpcError:
        pass
    return responses


async def test_a_reader_too_far_behind_gets_an_error_message(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100, eos=False), max_stream_buffer=5))
    reading, written = asyncio.Event(), []

    async def requests() -> AsyncIterator[bytes]:
        yield streamed(text_message(b"Hi"), max_tokens=100).SerializeToString()

    async def write(message: Any) -> None:
        await reading.wait()
        written.append(message)

    task = asyncio.ensure_future(stream_module.answer_stream(server.service, server.model, requests(), write, {}))
    await until(lambda: len(server.engine.aborted) == 1)
    reading.set()
    await task
    assert "more than 5 tokens waited" in written[-1].error_message
    assert finals(written)[-1] is True
    assert server.engine.num_requests == 0
