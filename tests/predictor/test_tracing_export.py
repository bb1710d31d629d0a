"""Tracing that is off or not installed, and collectors that fail."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from predictor.request_context import RequestContext, RequestEdge
from predictor.tracing import CLOSE_SECONDS, RequestTracer
from tests.otlp_collector import Collector
from tests.predictor.edge_app import edge_app
from tests.predictor.oip.conftest import until

REPOSITORY = Path(__file__).parents[2]


async def test_a_collector_that_fails_hurts_no_request(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.is_failing = True
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        for _ in range(20):
            assert (await server.client.complete()).status == 200
    tracer.close()
    assert collector.spans == []


async def test_a_collector_that_comes_back_gets_what_waits_and_what_follows(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    collector.is_failing, collector.num_failed = True, 0
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
        await until(lambda: collector.num_failed > 0, 60)
        collector.is_failing = False
        await server.client.complete()
        await until(lambda: len(collector.servers) >= 2, 60)
    tracer.close()


def test_a_collector_that_is_not_there_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    tracer = RequestTracer.start("http://127.0.0.1:9")
    edge = RequestEdge([tracer])
    with edge.handling(RequestContext("r", "http", "GET", edge, status=200)):
        pass
    begun = time.monotonic()
    tracer.close()
    assert time.monotonic() - begun < 5 * CLOSE_SECONDS


OFF = """
import sys
import predictor.server
from predictor.config import ServerConfig
from predictor.server import build_edge, start_tracing
from engine.config import EngineConfig
config = ServerConfig(engine=EngineConfig.from_kwargs(model_dir="nowhere"))
build_edge(config, start_tracing(config))
print(sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("opentelemetry.")}))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )


def test_off_imports_nothing_of_opentelemetry_but_the_api_that_fastapi_has() -> None:
    result = python(OFF)
    assert result.returncode == 0, result.stderr
    assert "opentelemetry.trace" in result.stdout, "fastapi imports the API"
    for name in ("sdk", "exporter", "proto", "semconv"):
        assert f"opentelemetry.{name}" not in result.stdout


def test_without_the_extra_the_server_says_what_to_install() -> None:
    result = python(
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from predictor.__main__ import main\n"
        "sys.exit(main(['--otlp_traces_endpoint', 'http://c:4317', '--http_port', '0', '--grpc_port', '0',"
        " '--model_dir', 'nowhere']))"
    )
    assert result.returncode == 1
    assert "--otlp_traces_endpoint needs the extra tracing" in result.stderr
    assert "pip install '.[tracing]'" in result.stderr
