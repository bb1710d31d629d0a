"""`benchmarks.gpu.budget`."""

from __future__ import annotations

import signal
import time

import pytest

from benchmarks.gpu.budget import Budget


def test_a_budget_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = Budget(5)
    assert budget.allows(5)
    now[0] = 13.0
    assert budget.left == 2.0
    assert not budget.allows(3)


def test_what_runs_on_is_interrupted_and_no_alarm_is_left() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError), Budget(0.02).enforced():
        time.sleep(100)
    with Budget(100).enforced():
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
