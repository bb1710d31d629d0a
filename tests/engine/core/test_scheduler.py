from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core.plan import StepPlan, StepResult
from engine.core.request import Request, Status
from engine.core.scheduler import Scheduler
from engine.messages import RawLogprobs, SequenceId
from tests.engine.core.support import PagedFakeRunner, lines_run, make_request, make_scheduler, next_token, step


def add(scheduler: Scheduler, name: str, prompt: object, **params: object) -> Request:
    request = make_request(name, prompt, serial=scheduler.num_running + scheduler.num_waiting, **params)  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(i.request.sequence_id, i.start, i.num_new_tokens, i.samples) for i in plan.scheduled]


def answer(plan: StepPlan, *token_ids: int) -> StepResult:
    """Each sequence that samples gets these tokens."""
    return StepResult(tuple(token_ids if i.samples else () for i in plan.scheduled), (None,) * len(plan.scheduled))


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


# --- preemption ------------------------------------------------------------------------------------------------------


def test_the_worst_running_request_is_preempted_and_comes_back_first() -> None:
    scheduler, _ = make_scheduler(num_blocks=5)
    runner = PagedFakeRunner(4)
    low = add(scheduler, "low", range(4))
    add(scheduler, "high", range(20, 28), priority=1)
    step(scheduler, runner)  # high takes two blocks and low one, then one more each; the next one of high is low's
    while low.status is Status.RUNNING:
        step(scheduler, runner)
    assert [name for name, *_ in shape(runner.plans[-1])] == ["high"]
    assert low.status is Status.PREEMPTED
    assert low.num_preemptions == scheduler.preemptions_total == 1
    assert (low.block_ids, low.num_computed_tokens) == ([], 0)
    num_output_tokens = low.num_output_tokens
    assert num_output_tokens > 0
    add(scheduler, "urgent", range(60, 64), priority=1)
    scheduler.abort(SequenceId("high"))
    step(scheduler, runner)
    assert [name for name, *_ in shape(runner.plans[-1])] == ["low", "urgent"]
    assert low.num_output_tokens == num_output_tokens + 1


def test_a_preempted_sequence_is_named_in_removed_once() -> None:
    scheduler, _ = make_scheduler()
    request = add(scheduler, "a", range(4), max_tokens=3)
    scheduler.update(plan := scheduler.schedule(), answer(plan, 1))
    scheduler.preempt(request)
    plan = scheduler.schedule()
    assert plan.removed == ("a",)
    assert shape(plan) == [("a", 4, 1, True)]  # its first block was still cached
    scheduler.update(plan, answer(plan, 1))
    assert scheduler.schedule().removed == ()


def test_the_last_of_the_running_preempts_itself() -> None:
    scheduler, _ = make_scheduler(num_blocks=4, max_model_len=17)
    runner = PagedFakeRunner(4)
    add(scheduler, "a", range(7), max_tokens=10)
    b = add(scheduler, "b", range(20, 24), max_tokens=10)
    step(scheduler, runner)
    step(scheduler, runner)  # both need a block: a gets one, b the last
    while not b.num_preemptions:
        step(scheduler, runner)
    assert [name for name, *_ in shape(runner.plans[-1])] == ["a"]


def test_E2_preemptions_leave_the_outputs_as_they_are() -> None:
    prompts = {f"r{i}": [i] * (5 + i) for i in range(6)}

    def outputs(num_blocks: int) -> tuple[dict[str, list[int]], int]:
        scheduler, pool = make_scheduler(num_blocks=num_blocks, max_model_len=33)
        runner = PagedFakeRunner(4)
        requests = {name: add(scheduler, name, prompt, max_tokens=15) for name, prompt in prompts.items()}
        while scheduler.has_requests():
            step(scheduler, runner)
        assert pool.num_available == num_blocks
        return {name: r.token_ids for name, r in requests.items()}, scheduler.preemptions_total

    plenty, no_preemptions = outputs(num_blocks=200)
    scarce, preemptions = outputs(num_blocks=10)
    assert no_preemptions == 0
    assert preemptions >= 3
    assert scarce == plenty


def test_E3_a_token_in_flight_at_preemption_counts_once() -> None:
    scheduler, pool = make_scheduler()
    runner = PagedFakeRunner(4)
    request = add(scheduler, "a", range(6), max_tokens=2)
    step(scheduler, runner)
    plan = scheduler.schedule()
    result = runner.execute(plan)
    scheduler.preempt(request)
    (output,) = scheduler.update(plan, result)
    scheduler.check_integrity()
    assert output.finish_reason == "length"
    assert len(output.token_ids) == 1
    assert request.num_output_tokens == 2
    assert not scheduler.has_requests()
    assert scheduler.num_waiting == 0
    assert pool.num_used == 0
    assert scheduler.update(plan, result) == []
    add(scheduler, "b", range(3))
    assert scheduler.schedule().removed == ("a",)


def test_E3_a_token_in_flight_below_the_maximum_is_not_sampled_again() -> None:
    scheduler, _ = make_scheduler()
    runner = PagedFakeRunner(4)
    request = add(scheduler, "a", range(6), max_tokens=5)
    plan = scheduler.schedule()
    result = runner.execute(plan)
    scheduler.preempt(request)
    (output,) = scheduler.update(plan, result)
    tokens = list(output.token_ids)
    assert tokens == [next_token(range(6), 1000)]
    while scheduler.has_requests():
        tokens += [t for o in step(scheduler, runner) for t in o.token_ids]
    assert request.token_ids[6:] == tokens
    assert len(tokens) == 5


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


# --- abort -----------------------------------------------------------------------------------------------------------


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


# --- prefix cache ----------------------------------------------------------------------------------------------------


def test_E4_the_second_of_two_equal_prompts_hits_one_block_and_samples_the_same() -> None:
    scheduler, _ = make_scheduler(block_size=16)
    runner = PagedFakeRunner(16)
    first = add(scheduler, "a", range(32), max_tokens=1)
    step(scheduler, runner)
    second = add(scheduler, "b", range(32), max_tokens=1)
    step(scheduler, runner)
    assert second.num_cached_tokens == 16
    assert second.token_ids == first.token_ids


def test_a_follow_up_turn_hits_what_the_answer_before_it_computed() -> None:
    scheduler, _ = make_scheduler(block_size=4)
    runner = PagedFakeRunner(4)
    first = add(scheduler, "a", range(6), max_tokens=7)
    while scheduler.has_requests():
        step(scheduler, runner)
    second = add(scheduler, "b", [*first.token_ids, 1, 2, 3])
    step(scheduler, runner)
    assert second.num_cached_tokens == 12  # of 13 tokens; the last one was never computed


def test_E6_after_a_reset_nothing_from_before_it_is_hit() -> None:
    scheduler, _ = make_scheduler(num_blocks=100)
    runner = PagedFakeRunner(4)
    running = add(scheduler, "running", range(10), max_tokens=60)
    add(scheduler, "gone", range(20, 30), max_tokens=1)
    for _ in range(5):
        step(scheduler, runner)
    preempted_request = add(scheduler, "preempted", range(40, 50), max_tokens=20)
    for _ in range(3):
        step(scheduler, runner)
    scheduler.preempt(preempted_request)
    scheduler.reset_prefix_cache()
    runner.generation += 1
    step(scheduler, runner)
    assert runner.plans[-1].scheduled[-1].start == 0  # the preempted one begins anew
    for _ in range(10):
        step(scheduler, runner)  # the running one fills blocks after the reset
    late = [
        add(scheduler, f"late{i}", [*tokens, 1], max_tokens=1)
        for i, tokens in enumerate([range(10), range(20, 30), list(running.token_ids)])
    ]
    step(scheduler, runner)
    assert [r.num_cached_tokens for r in late[:2]] == [0, 0]
    assert late[2].num_cached_tokens == 8  # what late0 has just computed, under the new weights
    scheduler.preempt(running)
    while scheduler.has_requests():
        step(scheduler, runner)


def test_salts_keep_requests_apart() -> None:
    scheduler, _ = make_scheduler()
    requests = [add(scheduler, n, range(12), cache_salt=salt) for n, salt in [("a", "x"), ("b", "y"), ("c", "x")]]
    scheduler.schedule()
    assert [r.num_cached_tokens for r in requests] == [0, 0, 8]


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
