"""Aborts while tokens are on their way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core.plan import StepPlan
from engine.core.request import Request, Status
from engine.messages import SequenceId
from tests.engine.core.ahead import Ahead, greedy, tokens_of


def in_flight(ahead: Ahead) -> Request:
    request = ahead.add("a", range(6), max_tokens=9)
    ahead.plan()
    return request


def in_flight_twice(ahead: Ahead) -> Request:
    request = in_flight(ahead)
    ahead.plan()
    return request


def in_decode(ahead: Ahead) -> Request:
    request = in_flight_twice(ahead)
    ahead.take()
    return request


def in_prefill(ahead: Ahead) -> Request:
    request = ahead.add("a", range(40))
    ahead.plan()
    ahead.plan()
    ahead.take()
    return request


def preempted(ahead: Ahead) -> Request:
    request = in_decode(ahead)
    ahead.scheduler.preempt(request)
    return request


def ending(ahead: Ahead) -> Request:
    request = ahead.add("a", range(6), max_tokens=1)
    ahead.plan()
    assert ahead.plan() == []
    assert request.status is Status.ENDING
    return request


def past_its_stop(ahead: Ahead) -> Request:
    request = ahead.add("a", range(6), stop_token_ids=tuple(greedy(range(6), 1)))
    ahead.step()
    assert request.is_finished
    return request


STATES = [in_flight, in_flight_twice, in_decode, in_prefill, preempted, ending, past_its_stop]


@pytest.mark.parametrize("state", STATES)
def test_E5_abort_in_each_state_twice(state: Callable[[Ahead], Request]) -> None:
    ahead = Ahead(max_num_batched_tokens=8)
    request = state(ahead)
    was_there = not request.is_finished
    assert ahead.scheduler.abort(request.sequence_id) == was_there
    assert not ahead.scheduler.abort(request.sequence_id)
    ahead.scheduler.check_integrity()
    assert not ahead.scheduler.has_requests()
    assert (ahead.scheduler.num_running, ahead.scheduler.num_waiting) == (0, 0)
    assert ahead.pool.num_available == ahead.pool.num_blocks
    assert ahead.scheduler.num_slots_filled == 0
    num_tokens = request.num_tokens
    while ahead.launched:
        assert ahead.take() == []
    assert request.num_tokens == num_tokens
    ahead.add("b", range(3), max_tokens=2)
    assert tokens_of(ahead.run(), "b") == greedy(range(3), 2)
    assert len(ahead.runner.rows) == 1, "the rows of what ended are removed"


def test_an_empty_plan_keeps_what_is_removed_for_the_next() -> None:
    ahead = Ahead()
    ahead.add("a", range(6), max_tokens=1)
    ahead.plan()
    assert ahead.scheduler.schedule() == StepPlan((), ())
    ahead.take()
    ahead.add("b", range(3))
    assert ahead.scheduler.schedule().removed == (SequenceId("a"),)
