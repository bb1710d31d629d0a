"""`/metrics` over ASGI: format, compression, aliases."""

from __future__ import annotations

import gzip

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from engine.errors import ConfigError
from engine.metrics import EngineMetrics
from engine.metrics_aliases import METRICS_ALIASES
from predictor.args import parse_config
from predictor.config import ServerConfig
from predictor.routes_metrics import accepts_gzip, build_router, wants_openmetrics
from tests.predictor.openai.asgi_client import Exchange

# What Prometheus 2.42 and 3.5 ask for.
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"  # noqa: E501
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.1"  # noqa: E501


def app(aliases: str = "none") -> FastAPI:
    registry = CollectorRegistry()
    EngineMetrics("m", registry).on_load(3, 2, 50)
    app = FastAPI(openapi_url=None)
    app.include_router(build_router(registry, METRICS_ALIASES[aliases]))
    return app


async def get(app: FastAPI, **headers: str):
    return await Exchange(app, "GET", "/metrics", b"", {k.replace("_", "-"): v for k, v in headers.items()}).done()


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"])
async def test_openmetrics_for_who_asks_for_it(accept: str) -> None:
    answer = await get(app("vllm"), accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {f.name: f for f in openmetrics_parser.text_string_to_metric_families(answer.body.decode())}
    assert families["pagedserve_requests_running"].samples[0].value == 3
    assert families["vllm:num_requests_running"].samples[0].value == 3
    assert families["pagedserve_preemptions"].type == "counter"
    assert "process_open_fds" in families


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain"])
async def test_prometheus_text_for_everybody_else(accept: str) -> None:
    answer = await get(app(), accept=accept)
    assert answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in parser.text_string_to_metric_families(answer.body.decode())}
    assert families["pagedserve_requests_running"].samples[0].value == 3
    assert "process_open_fds" in families


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0, text/plain", True),
        ('Application/OpenMetrics-Text; version="1.0.0"; charset=utf-8; q=0.2, */*;q=0.1', True),
        ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;version=1.0.0;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0;q=0, text/plain", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("application/openmetrics-text;q=0.5, */*", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=x", False),
        ("application/openmetrics-text;q=x", False),
        ("text/plain;version=x", False),
        (";;=,,", False),
    ],
)
async def test_the_format_by_version_and_weight(header: str, wanted: bool) -> None:
    assert wants_openmetrics(header) is wanted
    answer = await get(app(), accept=header)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text" if wanted else "text/plain")
    assert answer.body.endswith(b"# EOF\n") is wanted


async def test_aliases_only_where_asked_for() -> None:
    assert b"vllm:" not in (await get(app())).body
    assert b'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n' in (await get(app("vllm"))).body


async def test_gzip_for_who_accepts_it() -> None:
    plain, packed = await get(app()), await get(app(), accept_encoding="deflate, gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["content-length"] == str(len(packed.body))
    assert b"pagedserve_requests_running" in gzip.decompress(packed.body)
    assert len(packed.body) * 5 < len(plain.body)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip; q=0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("gzipped", False),
        ("identity", False),
    ],
)
def test_accept_encoding(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


def test_the_flag() -> None:
    assert parse_config([], {}).metrics_aliases == "none"
    assert parse_config(["--metrics-aliases", "vllm"], {}).metrics_aliases == "vllm"
    assert parse_config([], {"PAGEDSERVE_METRICS_ALIASES": "vllm"}).metrics_aliases == "vllm"
    with pytest.raises(ConfigError, match="must be one of none, vllm, got 'sglang'"):
        parse_config(["--metrics_aliases", "sglang"], {})
    with pytest.raises(ConfigError, match="metrics_aliases must be one of none, vllm"):
        ServerConfig(engine=parse_config([], {}).engine, metrics_aliases="sglang")
