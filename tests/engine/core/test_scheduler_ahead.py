"""Plans made before the result of the plan before them is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core.block_pool import BlockPool
from engine.core.plan import StepPlan, StepResult
from engine.core.request import Request, Status
from engine.core.scheduler import Scheduler
from engine.messages import SequenceId, SequenceOutput
from tests.engine.core.support import FixedStep, PagedFakeRunner, lines_run, make_request, make_scheduler, next_token


class Ahead:
    """A scheduler and a runner, with the result of one step outstanding between calls of `step`."""

    def __init__(self, num_blocks: int = 64, **bounds: object) -> None:
        self.scheduler: Scheduler
        self.pool: BlockPool
        self.scheduler, self.pool = make_scheduler(num_blocks, **bounds)  # type: ignore[arg-type]
        self.runner = PagedFakeRunner(4)
        self.launched: list[tuple[StepPlan, FixedStep]] = []
        self.num_added = 0

    def add(self, name: str, prompt: object, **params: object) -> Request:
        request = make_request(name, prompt, serial=self.num_added, **params)  # type: ignore[arg-type]
        self.num_added += 1
        self.scheduler.add(request)
        return request

    def plan(self) -> list[tuple[str, int, int, bool]]:
        """Plans and launches a step."""
        plan = self.scheduler.schedule()
        if plan.scheduled:
            self.launched.append((plan, self.runner.launch(plan)))
        self.scheduler.check_integrity()
        return [(i.request.sequence_id, i.start, i.num_new_tokens, i.samples) for i in plan.scheduled]

    def take(self) -> list[SequenceOutput]:
        """Takes in the oldest outstanding result."""
        plan, launched = self.launched.pop(0)
        outputs = self.scheduler.update(plan, launched.result())
        self.scheduler.check_integrity()
        return outputs

    def step(self) -> list[SequenceOutput]:
        while len(self.launched) < 2 and self.plan():
            pass
        return self.take()

    def run(self) -> list[SequenceOutput]:
        outputs = []
        while self.scheduler.has_requests() or self.launched:
            outputs += self.step()
        return outputs


def tokens_of(outputs: list[SequenceOutput], name: str) -> list[int]:
    return [token for output in outputs if output.sequence_id == name for token in output.token_ids]


def greedy(prompt: object, count: int) -> list[int]:
    tokens = list(prompt)  # type: ignore[call-overload]
    for _ in range(count):
        tokens.append(next_token(tokens, 1000))
    return tokens[-count:]


# --- pending tokens --------------------------------------------------------------------------------------------------


def test_a_sequence_goes_on_with_the_token_that_is_pending() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(6), max_tokens=3)
    assert ahead.plan() == [("a", 0, 6, True)]
    assert (request.num_tokens, request.num_pending) == (6, 1)
    assert ahead.plan() == [("a", 6, 1, True)]
    assert (request.num_tokens, request.num_pending) == (6, 2)
    ahead.take()
    assert (request.num_tokens, request.num_pending) == (7, 1)
    assert ahead.plan() == [("a", 7, 1, True)]
    assert request.token_ids[6:] + tokens_of(ahead.run(), "a") == greedy(range(6), 3)


def test_chunks_of_a_prompt_leave_nothing_pending_before_the_last() -> None:
    ahead = Ahead(max_num_batched_tokens=4)
    request = ahead.add("a", range(10))
    assert [ahead.plan(), ahead.plan()] == [[("a", 0, 4, False)], [("a", 4, 4, False)]]
    assert request.num_pending == 0
    assert ahead.take() == []
    assert ahead.plan() == [("a", 8, 2, True)]
    assert request.num_pending == 1


def test_the_plain_order_leaves_nothing_pending_when_it_plans() -> None:
    ahead = Ahead()
    requests = [ahead.add(name, range(6), max_tokens=5) for name in "ab"]
    while ahead.scheduler.has_requests():
        assert [r.num_pending for r in requests] == [0, 0]
        ahead.plan()
        ahead.take()


def test_a_step_planned_ahead_counts_on_one_token() -> None:
    ahead = Ahead()
    ahead.add("a", range(6))
    first = ahead.scheduler.schedule()
    ahead.scheduler.schedule()
    with pytest.raises(AssertionError):
        ahead.scheduler.update(first, StepResult(((1, 2),), (None,)))


# --- the end by length -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{"max_tokens": 2}, {"max_tokens": 50}])
def test_a_sequence_that_is_certain_to_end_is_not_planned_again(bounds: dict[str, int]) -> None:
    ahead = Ahead(max_model_len=8)
    request = ahead.add("a", range(6), **bounds)
    assert [len(ahead.plan()), len(ahead.plan())] == [1, 1]
    ahead.take()
    assert ahead.plan() == []
    assert request.status is Status.ENDING
    (output,) = ahead.take()
    assert output.finish_reason == "length"
    assert request.token_ids[6:] == greedy(range(6), 2)
    assert len(ahead.runner.plans) == 2


def test_the_place_and_the_blocks_of_an_ending_sequence_serve_the_next_at_once() -> None:
    ahead = Ahead(num_blocks=2, max_num_seqs=1, max_model_len=8)
    ahead.add("a", range(6), max_tokens=1)
    ahead.add("b", range(20, 27), max_tokens=1)
    assert ahead.plan() == [("a", 0, 6, True)]
    assert ahead.plan() == [("b", 0, 7, True)]
    assert ahead.runner.plans[1].removed == ("a",)
    assert (ahead.scheduler.num_running, ahead.scheduler.num_waiting) == (1, 0)
    assert tokens_of(ahead.take(), "a") == greedy(range(6), 1)
    assert tokens_of(ahead.take(), "b") == greedy(range(20, 27), 1)


def test_an_ending_sequence_does_not_make_another_preempt_itself() -> None:
    ahead = Ahead(num_blocks=4, max_model_len=12)
    ahead.add("a", range(7), max_tokens=2)
    b = ahead.add("b", range(20, 27), max_tokens=4)
    outputs = ahead.run()  # b's third block is one of a's, which is over but for its result
    assert tokens_of(outputs, "b") == greedy(range(20, 27), 4)
    assert b.num_preemptions == 0


# --- the end by a stop token -----------------------------------------------------------------------------------------


def test_what_was_computed_after_a_stop_is_dropped() -> None:
    (eos,) = greedy(range(6), 1)
    ahead = Ahead(eos_token_ids=[eos])
    request = ahead.add("a", range(6), max_tokens=50)
    ahead.plan()
    assert ahead.plan() == [("a", 6, 1, True)]
    (output,) = ahead.take()
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((eos,), "stop", eos)
    assert not ahead.scheduler.has_requests()
    assert ahead.pool.num_used == 0
    assert ahead.take() == []
    assert request.token_ids[6:] == [eos]


def test_blocks_that_a_launched_step_still_writes_into_are_given_away() -> None:
    (eos,) = greedy(range(8), 1)
    ahead = Ahead(num_blocks=3, max_model_len=13, eos_token_ids=[eos])
    ahead.add("a", range(8))
    ahead.plan()
    ahead.plan()  # computes a's ninth token, which is none, in its third block
    ahead.take()
    b = ahead.add("b", range(20, 32), max_tokens=1)
    assert ahead.plan() == [("b", 0, 12, True)]
    assert sorted(b.block_ids) == [1, 2, 3]
    assert ahead.take() == []
    assert tokens_of(ahead.take(), "b") == greedy(range(20, 32), 1)


# --- preemption ------------------------------------------------------------------------------------------------------


def test_a_victim_gets_its_pending_token_and_is_not_admitted_before() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(6), max_tokens=4)
    ahead.add("b", range(20, 26), max_tokens=9)
    ahead.plan()
    ahead.scheduler.preempt(request)
    assert (request.block_ids, request.num_pending) == ([], 1)
    assert ahead.plan() == [("b", 6, 1, True)]
    outputs = ahead.take()
    assert tokens_of(outputs, "a") == greedy(range(6), 1)
    assert ahead.plan() == [("b", 7, 1, True), ("a", 4, 3, True)]  # a hit on the block that it gave back
    assert tokens_of(outputs + ahead.run(), "a") == greedy(range(6), 4)


def test_nobody_overtakes_a_victim_that_waits_for_its_token() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(6))
    ahead.plan()
    ahead.scheduler.preempt(request)
    ahead.add("b", range(3))
    assert ahead.plan() == []
    ahead.take()
    assert [name for name, *_ in ahead.plan()] == ["a", "b"]


def test_E3_preempted_at_its_maximum_with_the_token_in_flight() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(6), max_tokens=2)
    ahead.plan()
    ahead.plan()
    ahead.take()
    ahead.scheduler.preempt(request)
    assert ahead.plan() == []
    assert ahead.scheduler.num_waiting == 0
    (output,) = ahead.take()
    assert output.finish_reason == "length"
    assert request.token_ids[6:] == greedy(range(6), 2)
    assert not ahead.scheduler.has_requests()
    assert ahead.pool.num_used == 0


def test_E3_preempted_with_two_tokens_in_flight() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(6), max_tokens=5)
    ahead.plan()
    ahead.plan()
    ahead.scheduler.preempt(request)
    assert request.num_pending == 2
    outputs = ahead.take()
    assert ahead.plan() == []
    outputs += ahead.take()
    assert request.num_output_tokens == 2
    outputs += ahead.run()
    assert tokens_of(outputs, "a") == greedy(range(6), 5)


def test_E2_preemptions_leave_the_outputs_as_they_are() -> None:
    def outputs(num_blocks: int) -> tuple[dict[str, list[int]], int]:
        ahead = Ahead(num_blocks, max_model_len=33)
        for i in range(6):
            ahead.add(f"r{i}", [i] * (5 + i), max_tokens=15)
        outputs = ahead.run()
        assert ahead.pool.num_available == num_blocks
        return {f"r{i}": tokens_of(outputs, f"r{i}") for i in range(6)}, ahead.scheduler.preemptions_total

    plenty, no_preemptions = outputs(num_blocks=200)
    scarce, preemptions = outputs(num_blocks=10)
    assert no_preemptions == 0
    assert preemptions >= 3
    assert scarce == plenty == {f"r{i}": greedy([i] * (5 + i), 15) for i in range(6)}


# --- abort -----------------------------------------------------------------------------------------------------------


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


# --- prefix cache ----------------------------------------------------------------------------------------------------


def test_a_block_is_found_once_its_last_token_is_known() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(7), max_tokens=30)
    ahead.plan()
    ahead.plan()  # fills the second block with a token that is not known
    follow_up = [*range(7), *greedy(range(7), 1), 1]
    assert len(ahead.pool.match(make_request("b", follow_up)).block_ids) == 1
    ahead.take()
    assert len(ahead.pool.match(make_request("b", follow_up)).block_ids) == 2
    late = ahead.add("late", follow_up, max_tokens=1)
    ahead.plan()
    assert late.num_cached_tokens == 8
    outputs = ahead.run()
    assert tokens_of(outputs, "late") == greedy(follow_up, 1)
    assert request.token_ids[7:] == greedy(range(7), 30)


def test_E6_a_reset_in_flight_leaves_nothing_to_hit() -> None:
    ahead = Ahead()
    request = ahead.add("a", range(7), max_tokens=30)
    ahead.plan()
    ahead.plan()
    ahead.scheduler.reset_prefix_cache()
    ahead.runner.generation += 1
    for _ in range(6):
        ahead.take()
        ahead.plan()
    late = ahead.add("late", [*request.token_ids, 1], max_tokens=1)
    ahead.take()
    ahead.plan()
    assert late.num_cached_tokens == 0
    ahead.run()
    assert request.token_ids[7:] == greedy(range(7), 30)


# --- cost ------------------------------------------------------------------------------------------------------------


def test_E10_the_cost_of_a_step_does_not_grow_with_the_queue() -> None:
    def lines_of_steps(queue_length: int) -> int:
        ahead = Ahead(num_blocks=1000, max_num_seqs=8)
        for i in range(queue_length):
            ahead.add(f"r{i}", [i, i + 1, i + 2], max_tokens=1 + i % 3, priority=1 + i % 5)

        def step() -> None:
            plan = ahead.scheduler.schedule()
            ahead.launched.append((plan, ahead.runner.launch(plan)))
            if len(ahead.launched) == 2:
                plan, launched = ahead.launched.pop(0)
                ahead.scheduler.update(plan, launched.result())

        lines = sum(lines_run(step) for _ in range(12))
        assert ahead.scheduler.num_waiting >= queue_length - 12 * 8
        return lines

    assert 1000 < lines_of_steps(10_000) <= 1.1 * lines_of_steps(200)
