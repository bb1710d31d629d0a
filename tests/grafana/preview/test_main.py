"""The command line of the preview."""

from __future__ import annotations

import pytest

from grafana.preview.__main__ import main, seconds


@pytest.mark.parametrize(("text", "expected"), [("30s", 30.0), ("15m", 900.0), ("3h", 10_800.0), ("7d", 604_800.0)])
def test_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="3h"):
        seconds("soon")


def test_the_prometheus_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "--prometheus" in capsys.readouterr().err
