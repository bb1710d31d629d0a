"""Who gives way when blocks run out, and how it comes back."""

from __future__ import annotations

from engine.core.request import Status
from engine.messages import SequenceId
from tests.engine.core.support import PagedFakeRunner, add, answer, make_scheduler, next_token, shape, step


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


def test_preemptions_and_their_ends_are_told_once() -> None:
    scheduler, _ = make_scheduler(num_blocks=10, max_model_len=33)
    runner = PagedFakeRunner(4)
    for i in range(6):
        add(scheduler, f"r{i}", [i] * (5 + i), max_tokens=15)
    assert scheduler.take_preempted() == scheduler.take_resumed() == []
    away: list[str] = []
    num_preempted = 0
    while scheduler.has_requests():
        step(scheduler, runner)
        for name in scheduler.take_resumed():
            away.remove(name)
        preempted = scheduler.take_preempted()
        away += preempted
        num_preempted += len(preempted)
        assert len(set(away)) == len(away), "preempted while it has no place"
    assert num_preempted == scheduler.preemptions_total >= 3
    assert away == []


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
