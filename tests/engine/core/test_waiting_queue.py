from __future__ import annotations

import random

import pytest

from engine.core.policy import AgingPolicy, OrderKey
from engine.core.request import Request, Status
from engine.core.waiting_queue import WaitingQueue
from tests.engine.core.support import make_request


class CountingKey(tuple[float, int]):
    """A key that counts how often it is compared."""

    comparisons = 0
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> bool:
        CountingKey.comparisons += 1
        return tuple(self) < tuple(other)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other)  # type: ignore[arg-type]


class CountingPolicy(AgingPolicy):
    def key(self, request: Request) -> OrderKey:
        return CountingKey(super().key(request))


def drained(queue: WaitingQueue) -> list[str]:
    names = []
    while queue:
        head = queue.peek()
        assert head is not None
        assert queue.pop() is head
        names.append(head.sequence_id)
    assert queue.peek() is None
    return names


def preempted(name: str, serial: int, **params: object) -> Request:
    request = make_request(name, [1], serial=serial, **params)
    request.status = Status.PREEMPTED
    return request


def test_gives_requests_in_the_policys_order() -> None:
    queue = WaitingQueue(AgingPolicy(10.0))
    for serial, (name, priority) in enumerate([("b", 5), ("c", 0), ("a", 1), ("d", 0)]):
        queue.push(make_request(name, [1], serial=serial, priority=priority))
    assert len(queue) == 4
    assert drained(queue) == ["a", "b", "c", "d"]


def test_preempted_requests_come_before_more_urgent_new_ones() -> None:
    queue = WaitingQueue(AgingPolicy(10.0))
    queue.push(make_request("urgent", [1], serial=5, priority=1))
    queue.push(preempted("worse victim", 4))
    queue.push(preempted("better victim", 3))
    assert drained(queue) == ["better victim", "worse victim", "urgent"]


def test_discard_takes_out_the_head_the_middle_and_nothing_twice() -> None:
    queue = WaitingQueue(AgingPolicy(10.0))
    requests = [make_request(name, [1, 2], serial=i) for i, name in enumerate("abcde")]
    for request in requests:
        queue.push(request)
    for index in (0, 2, 2):
        queue.discard(requests[index])
    assert len(queue) == 3
    assert queue.num_prompt_tokens == 6
    assert {r.sequence_id for r in queue} == {"b", "d", "e"}
    assert drained(queue) == ["b", "d", "e"]
    assert queue.num_prompt_tokens == 0


def test_a_discarded_request_can_come_back() -> None:
    queue = WaitingQueue(AgingPolicy(10.0))
    request = make_request("a", [1])
    queue.push(request)
    queue.push(make_request("b", [1], serial=1))
    queue.discard(request)
    queue.push(request)
    assert drained(queue) == ["a", "b"]


def test_refuses_a_request_twice_and_a_pop_from_nothing() -> None:
    queue = WaitingQueue(AgingPolicy(10.0))
    with pytest.raises(AssertionError):
        queue.pop()
    queue.push(make_request("a", [1]))
    with pytest.raises(AssertionError):
        queue.push(make_request("a", [1]))


def test_E10_discarding_costs_few_comparisons_and_leaves_no_dead_entries() -> None:
    queue, n = WaitingQueue(CountingPolicy(10.0)), 4096
    requests = [make_request(f"r{i}", [1], serial=i, arrival_time=float(i % 97)) for i in range(n)]
    for request in requests:
        queue.push(request)
    random.Random(0).shuffle(requests)
    CountingKey.comparisons = 0
    for request in requests:
        queue.discard(request)
        assert len(queue._heap) <= 2 * len(queue)
    assert CountingKey.comparisons <= 6 * n


def test_E10_pop_costs_a_logarithm() -> None:
    def comparisons_of_a_pop(n: int) -> int:
        queue = WaitingQueue(CountingPolicy(10.0))
        for i in range(n):
            queue.push(make_request(f"r{i}", [1], serial=i))
        CountingKey.comparisons = 0
        queue.pop()
        return CountingKey.comparisons

    assert 0 < comparisons_of_a_pop(10_000) <= 2 * comparisons_of_a_pop(100) + 2
