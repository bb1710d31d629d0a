import asyncio

import pytest

from engine.errors import EngineDeadError, SlowReaderError
from engine.inputs import GenerationRequest
from engine.outputs import PositionLogprobs, SequenceDelta, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.streams import MAX_PENDING_DELTAS, GenerationStream


def make_stream(n: int = 1, **options: int) -> tuple[GenerationStream, list[GenerationStream]]:
    aborted: list[GenerationStream] = []
    request = GenerationRequest("r", "p", (1, 2), SamplingParams(n=n), 0, 0.0)
    return GenerationStream(request, aborted.append, **options), aborted


async def test_deltas_come_in_order_and_end_with_the_last_sequence() -> None:
    stream, aborted = make_stream(n=2)
    deltas = [
        SequenceDelta(0, "a", (1,)),
        SequenceDelta(1, "x", (2,), finish_reason="stop"),
        SequenceDelta(0, "b", (3,), finish_reason="length"),
    ]
    for delta in deltas:
        stream.push(delta)
    assert [d async for d in stream] == deltas
    assert stream.is_done
    stream.abort()
    assert aborted == []


async def test_a_waiting_reader_wakes() -> None:
    stream, _ = make_stream()
    reader = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    stream.push(SequenceDelta(0, "a", (1,)))
    assert (await reader).text == "a"


async def test_S7_an_error_comes_after_what_was_there() -> None:
    stream, _ = make_stream()
    stream.push(SequenceDelta(0, "a", (1,)))
    stream.fail(EngineDeadError("gone"))
    assert (await anext(stream)).text == "a"
    with pytest.raises(EngineDeadError, match="gone"):
        await anext(stream)


async def test_leaving_early_aborts_once() -> None:
    stream, aborted = make_stream()
    stream.push(SequenceDelta(0, "a", (1,)))
    async with stream:
        async for _ in stream:
            break
    stream.abort()
    assert aborted == [stream]


async def test_a_cancelled_collect_aborts() -> None:
    stream, aborted = make_stream()
    task = asyncio.create_task(stream.collect())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert aborted == [stream]


async def test_a_slow_reader_gets_merged_deltas_and_loses_nothing() -> None:
    stream, _ = make_stream()
    count = MAX_PENDING_DELTAS * 3
    for i in range(count):
        stream.push(SequenceDelta(0, chr(97 + i % 26), (i,), finish_reason="length" if i == count - 1 else None))
    output = await stream.collect()
    assert output.outputs[0].token_ids == list(range(count))
    assert output.outputs[0].text == "".join(chr(97 + i % 26) for i in range(count))
    assert output.outputs[0].finish_reason == "length"
    assert output.finished


async def test_a_reader_too_far_behind_is_told_and_the_request_aborted() -> None:
    stream, aborted = make_stream(max_pending=10)
    stream.push(SequenceDelta(0, "a", (0,)))
    await anext(stream)
    for i in range(10):
        stream.push(SequenceDelta(0, "a", (i,)))
    assert aborted == []
    stream.push(SequenceDelta(0, "a", (10,)))
    assert aborted == [stream]
    assert stream.is_done
    with pytest.raises(SlowReaderError, match="more than 10 tokens waited"):
        await anext(stream)


async def test_a_reader_that_keeps_up_meets_no_bound() -> None:
    stream, aborted = make_stream(max_pending=10)
    for i in range(100):
        stream.push(SequenceDelta(0, "a", (i,) * 10))
        await anext(stream)
    assert aborted == []


async def test_alternatives_count_and_merged_deltas_too() -> None:
    token = TokenLogprob(1, -1.0, "a", b"a")
    position = PositionLogprobs(token, (token,) * 4, 0)
    stream, aborted = make_stream(max_pending=5 * (MAX_PENDING_DELTAS + 5))
    stream.push(SequenceDelta(0, "a", (0,)))
    await anext(stream)
    for i in range(MAX_PENDING_DELTAS + 5):
        stream.push(SequenceDelta(0, "a", (i,), (position,)))
    assert aborted == []
    for _ in range(5):
        await anext(stream)
    for i in range(5):
        stream.push(SequenceDelta(0, "a", (i,), (position,)))
    assert aborted == []
    stream.push(SequenceDelta(0, "a", (0,), (position,)))
    assert aborted == [stream]


async def test_what_has_finished_waits_for_its_reader_however_slow() -> None:
    stream, aborted = make_stream(max_pending=3)
    stream.push(SequenceDelta(0, "a", (0,)))
    await anext(stream)
    for i in range(3):
        stream.push(SequenceDelta(0, "a", (i,)))
    stream.push(SequenceDelta(0, "a", (3,), finish_reason="length"))
    assert "".join([delta.text async for delta in stream]) == "aaaa"
    assert aborted == []


async def test_collect_has_no_bound_nor_has_what_nobody_reads_yet() -> None:
    stream, aborted = make_stream(max_pending=3)
    for i in range(50):
        stream.push(SequenceDelta(0, "a", (i,)))
    task = asyncio.create_task(stream.collect())
    await asyncio.sleep(0)
    for i in range(100):
        stream.push(SequenceDelta(0, "a", (i,), finish_reason="length" if i == 99 else None))
    assert (await task).outputs[0].text == "a" * 150
    assert aborted == []
