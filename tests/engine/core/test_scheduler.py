"""The budget of a step, admission, and what a result does."""

from __future__ import annotations

import pytest

from engine.core.plan import StepResult
from engine.core.scheduler import Scheduler
from engine.messages import RawLogprobs, SequenceId
from tests.engine.core.support import PagedFakeRunner, add, answer, lines_run, make_scheduler, next_token, shape, step

# --- the budget ------------------------------------------------------------------------------------------------------


def test_prompts_and_decodes_share_one_step() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "a", range(5))
    scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
    add(scheduler, "b", range(50, 57))
    assert shape(scheduler.schedule()) == [("a", 5, 1, True), ("b", 0, 7, True)]


def test_a_long_prompt_is_computed_in_chunks_and_samples_once() -> None:
    scheduler, _ = make_scheduler(max_num_batched_tokens=7)
    runner = PagedFakeRunner(4)
    request = add(scheduler, "a", range(16))
    outputs = [step(scheduler, runner) for _ in range(3)]
    assert [shape(p) for p in runner.plans] == [[("a", 0, 7, False)], [("a", 7, 7, False)], [("a", 14, 2, True)]]
    assert [len(o) for o in outputs] == [0, 0, 1]
    assert request.token_ids[16:] == [next_token(range(16), 1000)]


def test_the_rest_of_the_budget_starts_the_next_prompt() -> None:
    scheduler, _ = make_scheduler(max_num_batched_tokens=7)
    add(scheduler, "a", range(5))
    add(scheduler, "b", range(50, 60))
    assert shape(scheduler.schedule()) == [("a", 0, 5, True), ("b", 0, 2, False)]


def test_running_requests_go_on_in_order_of_priority() -> None:
    scheduler, _ = make_scheduler(max_num_batched_tokens=8)
    add(scheduler, "low", range(4))
    scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
    add(scheduler, "high", range(20, 40), priority=1)
    plans = []
    for _ in range(4):
        scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
        plans.append(shape(plan))
    assert plans == [
        [("low", 4, 1, True), ("high", 0, 7, False)],
        [("high", 7, 8, False)],
        [("high", 15, 5, True), ("low", 5, 1, True)],
        [("high", 20, 1, True), ("low", 6, 1, True)],
    ]


# --- admission -------------------------------------------------------------------------------------------------------


def test_waiting_requests_are_admitted_by_priority_then_arrival() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "second", [1], arrival_time=2.0)
    add(scheduler, "third", [2], arrival_time=3.0)
    add(scheduler, "first", [3], arrival_time=4.0, priority=1)
    assert [name for name, *_ in shape(scheduler.schedule())] == ["first", "second", "third"]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, [1])
    assert len(scheduler.schedule().scheduled) == 2
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_prompt_is_admitted_only_when_all_of_it_fits_and_a_block_is_spared() -> None:
    scheduler, pool = make_scheduler(num_blocks=6, max_num_batched_tokens=10)
    add(scheduler, "a", range(8))
    add(scheduler, "b", range(50, 66))  # 4 blocks, and 4 are available: none would be spared
    plan = scheduler.schedule()
    assert shape(plan) == [("a", 0, 8, True)]
    scheduler.update(plan, answer(plan, 1))
    scheduler.abort(SequenceId("a"))
    assert pool.num_available == 6
    assert shape(scheduler.schedule()) == [("b", 0, 10, False)]


def test_a_hundredth_of_a_large_pool_is_spared() -> None:
    def num_admitted(prompt_blocks: int) -> int:
        scheduler, _ = make_scheduler(num_blocks=400, max_num_batched_tokens=5000)
        add(scheduler, "a", range(4))
        add(scheduler, "b", range(1000, 1000 + 4 * prompt_blocks))
        return len(scheduler.schedule().scheduled)

    assert num_admitted(prompt_blocks=395) == 2
    assert num_admitted(prompt_blocks=396) == 1


def test_the_watermark_is_waived_when_nothing_runs() -> None:
    scheduler, _ = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(16))
    assert shape(scheduler.schedule()) == [("a", 0, 16, True)]


def test_a_prefix_in_use_makes_room_for_more() -> None:
    scheduler, _ = make_scheduler(num_blocks=6)
    add(scheduler, "a", range(12))
    add(scheduler, "b", range(13))  # three blocks shared with a, one new, one spared
    assert shape(scheduler.schedule()) == [("a", 0, 12, True), ("b", 12, 1, True)]


def test_requests_of_one_step_share_what_the_first_of_them_computes() -> None:
    scheduler, pool = make_scheduler()
    runner = PagedFakeRunner(4)
    requests = [add(scheduler, name, [*range(12), i], max_tokens=1) for i, name in enumerate("abc")]
    step(scheduler, runner)
    assert shape(runner.plans[0]) == [("a", 0, 13, True), ("b", 12, 1, True), ("c", 12, 1, True)]
    assert [r.token_ids[13] for r in requests] == [next_token([*range(12), i], 1000) for i in range(3)]
    assert pool.num_used == 0


def test_the_first_admission_is_reported_once_with_its_hit() -> None:
    scheduler, _ = make_scheduler()
    first = add(scheduler, "a", range(8))
    scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
    assert scheduler.take_admitted() == [first]
    second = add(scheduler, "b", range(8))
    scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
    assert scheduler.take_admitted() == [second]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 4)
    scheduler.preempt(second)
    scheduler.schedule()
    assert scheduler.take_admitted() == []
    assert (scheduler.prefix_query_tokens_total, scheduler.prefix_hit_tokens_total) == (16, 4)


def test_a_sequence_id_in_use_is_refused() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "a", [1])
    with pytest.raises(ValueError, match="'a' is in use"):
        add(scheduler, "a", [2])


# --- results ---------------------------------------------------------------------------------------------------------


def test_several_tokens_of_one_step_are_taken_up_to_the_one_that_ends() -> None:
    scheduler, _ = make_scheduler(eos_token_ids=[9])
    request = add(scheduler, "a", range(4), logprobs=0)
    plan = scheduler.schedule()
    logprobs = tuple(RawLogprobs(t, -1.0) for t in (5, 9, 6))
    (output,) = scheduler.update(plan, StepResult(((5, 9, 6),), (logprobs,)))
    assert output.token_ids == (5, 9)
    assert output.logprobs == logprobs[:2]
    assert (output.finish_reason, output.stop_token_id) == ("stop", 9)
    assert request.token_ids[4:] == [5, 9]


def test_tokens_without_kv_yet_are_computed_in_the_next_step() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "a", range(4))
    scheduler.update(plan := scheduler.schedule(), answer(plan, 5, 6, 7))
    assert shape(scheduler.schedule()) == [("a", 4, 3, True)]


def test_a_result_of_another_shape_is_refused() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, "a", range(4))
    plan = scheduler.schedule()
    with pytest.raises(ValueError, match="shorter"):
        scheduler.update(plan, StepResult((), ()))
    with pytest.raises(AssertionError):
        scheduler.update(plan, StepResult(((),), (None,)))


# --- cost ------------------------------------------------------------------------------------------------------------


def test_E10_the_cost_of_a_step_does_not_grow_with_the_queue() -> None:
    def lines_of_steps(queue_length: int) -> list[int]:
        scheduler, _ = make_scheduler(num_blocks=1000, max_num_seqs=8)
        runner = PagedFakeRunner(4)
        for i in range(queue_length):
            add(scheduler, f"r{i}", [i, i + 1, i + 2], max_tokens=1 + i % 3, priority=1 + i % 5)
        lines = [lines_run(lambda: step_without_checks(scheduler, runner)) for _ in range(12)]
        assert scheduler.num_waiting >= queue_length - 12 * 8
        return lines

    def step_without_checks(scheduler: Scheduler, runner: PagedFakeRunner) -> None:
        scheduler.update(plan := scheduler.schedule(), runner.execute(plan))

    few, many = lines_of_steps(200), lines_of_steps(10_000)
    assert sum(few) > 1000
    assert sum(many) <= sum(few) * 1.1


def test_E10_the_cost_of_an_abort_does_not_grow_with_the_queue() -> None:
    def lines_of_aborts(queue_length: int) -> int:
        scheduler, _ = make_scheduler()
        for i in range(queue_length):
            add(scheduler, f"r{i}", [1])
        names = [SequenceId(f"r{i}") for i in range(0, queue_length, queue_length // 20)]
        return lines_run(lambda: [scheduler.abort(name) for name in names])

    assert 0 < lines_of_aborts(10_000) <= lines_of_aborts(100)
