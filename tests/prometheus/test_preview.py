"""The preview's own little cluster lives and is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from grafana.links import UIDS
from tests.prometheus import preview
from tests.prometheus.preview import clients_at
from tests.prometheus.server import tool


def test_the_load_comes_and_goes() -> None:
    clients = [clients_at(share / 100) for share in range(101)]
    assert max(clients) > 5 * clients[0]
    assert max(clients) > 5 * clients[-1]
    assert min(clients) >= 1


@pytest.mark.full
def test_every_dashboard_is_drawn(tmp_path: Path) -> None:
    tool("prometheus")
    preview.main(["--out", str(tmp_path), "--seconds", "30"])
    assert {file.stem for file in tmp_path.glob("*.png")} == set(UIDS.values())
