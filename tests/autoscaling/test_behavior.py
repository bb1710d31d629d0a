from __future__ import annotations

import pytest

from autoscaling.behavior import Behavior, Policy, ScaleEvent, ScalingRules, down_limit, up_limit

BASE_UP = (Policy("Percent", 100, 180), Policy("Pods", 2, 180))


def rules(*policies: Policy, select: str = "Max") -> ScalingRules:
    return ScalingRules(0, policies, select)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policies", "select", "current", "events", "limit"),
    [
        (BASE_UP, "Max", 1, [], 3),  # two pods are more than a double
        (BASE_UP, "Max", 2, [], 4),  # both say the same
        (BASE_UP, "Max", 4, [], 8),  # the double is more than two pods
        (BASE_UP, "Min", 4, [], 6),  # the smaller change
        (BASE_UP, "Disabled", 4, [], 4),
        ((Policy("Percent", 10, 60),), "Max", 1, [], 2),  # rounded up, or it would never leave 1
        (BASE_UP, "Max", 4, [ScaleEvent(99, 2)], 4),  # the period began with 2 and allows 4
        (BASE_UP, "Max", 6, [ScaleEvent(99, 2)], 8),  # the period began with 4
        (BASE_UP, "Max", 4, [ScaleEvent(-80, 2)], 8),  # exactly a period ago is over
        (BASE_UP, "Max", 4, [ScaleEvent(-79, 2)], 4),
    ],
)
def test_up_limit(
    policies: tuple[Policy, ...], select: str, current: int, events: list[ScaleEvent], limit: int
) -> None:
    assert up_limit(rules(*policies, select=select), current, events, [], 100) == limit


@pytest.mark.parametrize(
    ("policies", "select", "current", "events", "limit"),
    [
        ((Policy("Pods", 1, 180),), "Max", 8, [], 7),
        ((Policy("Pods", 1, 180),), "Max", 7, [ScaleEvent(99, 1)], 7),  # this period's one is gone
        ((Policy("Percent", 50, 60),), "Max", 5, [], 2),  # cut off, not rounded
        ((Policy("Percent", 100, 15),), "Max", 5, [], 0),  # the API server's default: all at once
        ((Policy("Pods", 1, 60), Policy("Percent", 50, 60)), "Max", 8, [], 4),  # the larger change
        ((Policy("Pods", 1, 60), Policy("Percent", 50, 60)), "Min", 8, [], 7),  # the smaller change
        ((Policy("Pods", 1, 60),), "Disabled", 8, [], 8),
    ],
)
def test_down_limit(
    policies: tuple[Policy, ...], select: str, current: int, events: list[ScaleEvent], limit: int
) -> None:
    assert down_limit(rules(*policies, select=select), current, [], events, 100) == limit


def test_pods_added_in_the_period_may_go_again() -> None:
    # Two were added 60 s ago: the period of 180 s began with 6, of which one may go.
    assert down_limit(rules(Policy("Pods", 1, 180)), 8, [ScaleEvent(40, 2)], [], 100) == 5


def test_defaults_are_the_api_servers() -> None:
    behavior = Behavior.of(None)
    assert (behavior.up.window_seconds, behavior.down.window_seconds) == (0, 300)
    assert up_limit(behavior.up, 1, [], [], 0) == 5  # 4 pods, more than a double
    assert up_limit(behavior.up, 10, [], [], 0) == 20
    assert down_limit(behavior.down, 10, [], [], 0) == 0
    assert behavior.up.tolerance == behavior.down.tolerance == 0.1


def test_what_is_given_replaces_its_default_only() -> None:
    behavior = Behavior.of({"scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": "50m"}})
    assert behavior.down.window_seconds == 0
    assert behavior.down.tolerance == 0.05
    assert behavior.down.policies == Behavior.of(None).down.policies
    assert behavior.up == Behavior.of(None).up
