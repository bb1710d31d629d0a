"""`/metrics` of the real server against docs/metrics.md."""

from __future__ import annotations

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server import REPOSITORY, Server

DOCUMENTED = set(re.findall(r"^\| `(pagedserve_\w+)`", (REPOSITORY / "docs/metrics.md").read_text(), re.MULTILINE))


def exported(server: Server) -> set[str]:
    names = set()
    for family in text_string_to_metric_families(httpx.get(server.http_url + "/metrics", timeout=60.0).text):
        if family.name.startswith("pagedserve_"):
            names.add(family.name + ("_total" if family.type == "counter" else ""))
    return names


def test_every_metric_is_documented_and_every_documented_one_exists(tiny_server: Server) -> None:
    assert len(DOCUMENTED) == 41
    assert exported(tiny_server) == DOCUMENTED


def test_kv_waste_is_under_4_percent_for_8_requests_of_512_tokens(tiny_server: Server) -> None:
    url = tiny_server.http_url + "/v1/completions"
    body = {"model": "tiny", "max_tokens": 3000, "temperature": 0, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=60.0, limits=httpx.Limits(max_connections=8)) as client:
        streams = [
            client.stream("POST", url, json={**body, "prompt": [3 + (7 * i + j) % 200 for j in range(500)]})
            for i in range(8)
        ]
        responses = [stream.__enter__() for stream in streams]
        try:
            lines = [response.iter_lines() for response in responses]
            for _ in range(24):  # an event and its empty line: twelve tokens of each
                for line in lines:
                    next(line)
            assert tiny_server.metric("requests_running") == 8
            assert tiny_server.metric("kv_cache_usage_ratio") > 0
            assert 0 <= tiny_server.metric("kv_cache_waste_ratio") < 0.04
        finally:
            for stream in streams:
                stream.__exit__(None, None, None)
