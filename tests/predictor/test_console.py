"""Progress and the last line of a start."""

from __future__ import annotations

import io
import json
import logging
import shlex

import pytest

from engine.messages import LoadProgress
from predictor.console import Access, LoadingDisplay, ready_text
from tests.fake_engine import MODEL_INFO


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_a_phase_on_a_terminal() -> None:
    terminal = Terminal()
    display = LoadingDisplay(terminal)
    display.show(None)
    display.show(LoadProgress("loading weights", 3, 30))
    display.show(LoadProgress("loading weights", 30, 30))
    display.show(LoadProgress("warming up", 0, 1))
    display.close()
    text = terminal.getvalue()
    assert "loading weights: 100%" in text
    assert "30/30" in text
    assert "warming up" in text


def test_one_line_a_phase_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    file = io.StringIO()
    display = LoadingDisplay(file)
    logging.getLogger("predictor").propagate = True
    with caplog.at_level(logging.INFO, "predictor"):
        for done in range(5):
            display.show(LoadProgress("loading weights", done, 5))
        display.show(LoadProgress("warming up", 0, 1))
    assert [record.getMessage() for record in caplog.records] == ["Starting: loading weights", "Starting: warming up"]
    assert file.getvalue() == ""


def test_the_last_line_is_a_command_that_a_shell_understands() -> None:
    words = shlex.split(ready_text("Ann's model", MODEL_INFO, 1234, 5678).splitlines()[-1])
    assert words[:2] == ["curl", "http://localhost:1234/v1/completions"]
    assert json.loads(words[-1])["model"] == "Ann's model"


def test_the_command_names_what_a_client_needs() -> None:
    access = Access(tls=True, client_certificates=True, api_keys=True)
    text = ready_text("model", MODEL_INFO, 1234, 5678, access)
    assert "gRPC port 5678 (both TLS)" in text
    words = shlex.split(text.splitlines()[-1])
    assert words[1:8] == [
        *["--cacert", "CA.pem", "--cert", "CLIENT.pem", "--key", "CLIENT.key"],
        "-H",
    ]
    assert words[8:10] == ["Authorization: Bearer $API_KEY", "https://localhost:1234/v1/completions"]
    assert '"Authorization: Bearer $API_KEY"' in text  # a shell fills it in
