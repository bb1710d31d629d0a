"""Which lines are logged."""

from __future__ import annotations

import logging

import pytest

from predictor.logs import QuietProbes


def access(path: str) -> logging.LogRecord:
    arguments = ("127.0.0.1:1", "GET", path, "1.1", 200)
    return logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None)


@pytest.mark.parametrize("path", ["/metrics", "/v2/health/ready", "/v2/health/live?x=1", "/health", "/"])
def test_probes_are_quiet(path: str) -> None:
    assert not QuietProbes().filter(access(path))


@pytest.mark.parametrize("path", ["/v1/completions", "/v2/models/m/infer", "/metrics/other"])
def test_requests_are_not(path: str) -> None:
    assert QuietProbes().filter(access(path))


def test_other_records_pass() -> None:
    assert QuietProbes().filter(logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "text", None, None))
