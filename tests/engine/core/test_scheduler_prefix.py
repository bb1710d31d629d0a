"""What requests find in the prefix cache."""

from __future__ import annotations

from tests.engine.core.support import PagedFakeRunner, add, make_scheduler, step


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
