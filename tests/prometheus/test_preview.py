"""The preview's own little cluster lives and is drawn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from grafana.links import UIDS
from tests.prometheus import preview
from tests.prometheus.preview import clients_at, decide
from tests.prometheus.server import Prometheus, tool


def test_the_load_comes_and_goes() -> None:
    clients = [clients_at(share / 100) for share in range(101)]
    assert max(clients) > 5 * clients[0]
    assert max(clients) > 5 * clients[-1]
    assert min(clients) >= 1


@pytest.mark.parametrize(
    ("requests", "desired", "limited"), [(0.0, 2, True), (13.0, 2, False), (14.0, 3, False), (24.0, 3, True)]
)
def test_the_autoscaler_follows_its_rule(requests: float, desired: int, limited: bool) -> None:
    """ceil(total / 6 / 1.1) within 2 to 3, and whether that holds it back."""

    class Answers:
        def query(self, expression: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(value=requests)] if "requests_running" in expression else []

    scaler = decide(cast("Prometheus", Answers()), replicas=2)
    assert (scaler.desired, scaler.limited) == (desired, limited)


@pytest.mark.full
def test_every_dashboard_is_drawn(tmp_path: Path) -> None:
    tool("prometheus")
    preview.main(["--out", str(tmp_path), "--seconds", "30"])
    assert {file.stem for file in tmp_path.glob("*.png")} == set(UIDS.values())
