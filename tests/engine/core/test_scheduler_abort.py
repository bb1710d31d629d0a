"""Aborts, in each state of a request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core.plan import StepPlan
from engine.core.request import Request, Status
from engine.core.scheduler import Scheduler
from engine.messages import SequenceId
from tests.engine.core.support import PagedFakeRunner, add, answer, make_scheduler, step


def waiting(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    return add(scheduler, "a", range(20))


def in_prefill(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    request = waiting(scheduler, runner)
    step(scheduler, runner)
    assert 0 < request.num_computed_tokens < 20
    return request


def in_decode(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    request = waiting(scheduler, runner)
    while request.num_output_tokens < 2:
        step(scheduler, runner)
    return request


def preempted(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    request = in_decode(scheduler, runner)
    scheduler.preempt(request)
    return request


def sharing(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    request = in_decode(scheduler, runner)
    add(scheduler, "b", range(20))
    step(scheduler, runner)
    scheduler.abort(SequenceId("b"))
    return request


def finished(scheduler: Scheduler, runner: PagedFakeRunner) -> Request:
    request = in_decode(scheduler, runner)
    while scheduler.has_requests():
        step(scheduler, runner)
    return request


@pytest.mark.parametrize("state", [waiting, in_prefill, in_decode, preempted, sharing, finished])
def test_E5_abort_in_each_state_twice(state: Callable[[Scheduler, PagedFakeRunner], Request]) -> None:
    scheduler, pool = make_scheduler(max_num_batched_tokens=8)
    request = state(scheduler, PagedFakeRunner(4))
    was_there = request.status is not Status.FINISHED
    assert scheduler.abort(request.sequence_id) == was_there
    assert not scheduler.abort(request.sequence_id)
    assert request.is_finished
    assert request.finish_reason == ("abort" if was_there else "length")
    assert not scheduler.has_requests()
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_waiting_prompt_tokens) == (0, 0, 0)
    assert pool.num_available == pool.num_blocks
    assert scheduler.num_slots_filled == 0
    scheduler.check_integrity()


def test_E5_abort_between_plan_and_result() -> None:
    scheduler, pool = make_scheduler()
    add(scheduler, "a", range(4))
    add(scheduler, "b", range(50, 54))
    plan = scheduler.schedule()
    scheduler.abort(SequenceId("a"))
    assert [o.sequence_id for o in scheduler.update(plan, answer(plan, 1))] == ["b"]
    assert scheduler.schedule().removed == ("a",)
    scheduler.abort(SequenceId("b"))
    assert pool.num_used == 0


def test_an_unknown_sequence_cannot_be_aborted() -> None:
    scheduler, _ = make_scheduler()
    assert not scheduler.abort(SequenceId("nobody"))


def test_a_sequence_that_never_ran_is_not_named_in_removed() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "a", range(4))
    scheduler.abort(SequenceId("a"))
    assert scheduler.schedule() == StepPlan((), ())
    add(scheduler, "b", range(4))
    assert scheduler.schedule().removed == ()
