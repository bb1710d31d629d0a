"""Preemption while tokens are on their way."""

from __future__ import annotations

from tests.engine.core.ahead import Ahead, greedy, tokens_of


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
