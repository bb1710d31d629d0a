from __future__ import annotations

from engine.core.policy import AgingPolicy
from engine.core.request import Request
from tests.engine.core.support import make_request


def ordered(*requests: Request, aging_seconds: float = 10.0) -> list[str]:
    return [r.sequence_id for r in sorted(requests, key=AgingPolicy(aging_seconds).key)]


def test_lower_levels_come_first_and_zero_is_the_default_level() -> None:
    levels = {"lowest": 200, "default": 0, "highest": 1, "second": 2}
    requests = [make_request(name, [1], serial=i, priority=p) for i, (name, p) in enumerate(levels.items())]
    assert ordered(*requests) == ["highest", "second", "default", "lowest"]


def test_within_a_level_arrival_decides_then_the_serial() -> None:
    late = make_request("late", [1], serial=0, arrival_time=2.0)
    first = make_request("first", [1], serial=1, arrival_time=1.0)
    second = make_request("second", [1], serial=2, arrival_time=1.0)
    assert ordered(second, late, first) == ["first", "second", "late"]


def test_waiting_for_aging_seconds_is_worth_one_level() -> None:
    urgent = make_request("urgent", [1], serial=1, priority=99, arrival_time=100.0)
    waited_longer = make_request("old", [1], serial=0, priority=100, arrival_time=89.0)
    waited_less = make_request("newer", [1], serial=2, priority=100, arrival_time=91.0)
    assert ordered(waited_less, urgent, waited_longer) == ["old", "urgent", "newer"]
