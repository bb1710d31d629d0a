"""Plans made before the result of the plan before them is there."""

from __future__ import annotations

import pytest

from engine.core.plan import StepResult
from engine.core.request import Status
from tests.engine.core.ahead import Ahead, greedy, tokens_of
from tests.engine.core.support import lines_run, make_request

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
