"""Ids, trace headers, and what counts as an error."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from engine.errors import OverloadedError
from predictor.request_context import (
    MAX_REQUEST_ID_LENGTH,
    MAX_TRACESTATE_LENGTH,
    RequestContext,
    RequestEdge,
    current_request,
    identity_of,
    note_error,
    note_model,
    request_id_of,
    trace_id_of,
)

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8


def request() -> RequestContext:
    return RequestContext("r", "http", "GET", RequestEdge())


@pytest.mark.parametrize("given", ["a", "A-b_c.d:e/f+g=h@i~j", "Root=1-67891233-abcdef", "x" * MAX_REQUEST_ID_LENGTH])
def test_a_sane_id_is_kept(given: str) -> None:
    assert request_id_of(given) == given


@pytest.mark.parametrize("given", [None, "", " a", "a b", "a\n", "a\r\nb: c", "a\\b", "'", "\x1b[31m", "ä", "x" * 129])
def test_any_other_is_replaced(given: str | None) -> None:
    assert request_id_of(given) != given
    assert request_id_of(given) != request_id_of(given)


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (f"00-{TRACE_ID}-{SPAN_ID}-01", TRACE_ID),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", TRACE_ID),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-comes-later", TRACE_ID),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-{'x' * 456}", TRACE_ID),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-{'x' * 457}", None),
        (f"ff-{TRACE_ID}-{SPAN_ID}-01", None),
        (f"00-{'0' * 32}-{SPAN_ID}-01", None),
        (f"00-{TRACE_ID}-{'0' * 16}-01", None),
        (f"00-{TRACE_ID.upper()}-{SPAN_ID}-01", None),
        (f"00-{TRACE_ID}-{SPAN_ID}", None),
        (f"00-{TRACE_ID}-{SPAN_ID}-01-what-comes-later", None),
        ("", None),
    ],
)
def test_the_trace_of_a_header(header: str, trace_id: str | None) -> None:
    assert trace_id_of({"traceparent": header}) == trace_id


def test_a_long_state_is_left_out_and_the_parent_stands() -> None:
    parent = ("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01")
    halves = [("tracestate", f"{name}={'v' * 253}") for name in "ab"]
    _, headers = identity_of([parent, *halves])
    assert headers["tracestate"] == f"{halves[0][1]},{halves[1][1]}"
    assert len(headers["tracestate"]) == MAX_TRACESTATE_LENGTH - 1
    _, headers = identity_of([parent, *halves, ("tracestate", "c")])
    assert headers == dict([parent])


def test_the_first_error_counts_and_outside_of_a_request_none_does() -> None:
    note_error(ValueError())
    note_model("m")
    one = request()
    with one.edge.handling(one):
        note_error(OverloadedError("x", reason="waiting_requests", retry_after=1))
        note_error(ValueError())
        note_model("n" * 1000)
    assert one.error_type == "OverloadedError"
    assert one.model is not None
    assert len(one.model) == 100
    assert current_request() is None


def test_an_error_is_not_kept_alive() -> None:
    class Body:
        """What the frame of the error holds."""

    one = request()

    def failing() -> weakref.ref[Body]:
        body = Body()
        try:
            raise ValueError(body)
        except ValueError as error:
            note_error(error)
        return weakref.ref(body)

    with one.edge.handling(one):
        assert failing()() is None
    assert one.error_type == "ValueError"


async def test_tasks_inherit_the_request() -> None:
    one = request()

    async def inside() -> RequestContext | None:
        return current_request()

    with one.edge.handling(one):
        assert await asyncio.create_task(inside()) is one
    assert await asyncio.create_task(inside()) is None


async def test_after_an_exception_its_task_still_knows_the_request() -> None:
    one = request()

    async def failing() -> RequestContext | None:
        try:
            with one.edge.handling(one):
                raise ValueError
        except ValueError:
            return current_request()

    assert await asyncio.create_task(failing()) is one
    assert current_request() is None


async def test_a_cancellation_is_an_abort() -> None:
    one = request()

    async def waiting() -> None:
        with one.edge.handling(one):
            await asyncio.Event().wait()

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (one.is_aborted, one.error_type) == (True, "client_disconnected")


@pytest.mark.parametrize(
    ("status", "error_type"), [(200, None), (404, "404"), (503, "503"), ("OK", None), ("UNKNOWN", "UNKNOWN")]
)
def test_without_an_error_the_status_is_its_type(status: int | str, error_type: str | None) -> None:
    one = request()
    one.status = status
    assert one.error_type == error_type
