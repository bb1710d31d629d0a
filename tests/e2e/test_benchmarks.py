"""The load generator against the real server: it tells what it saw."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.e2e.server import REPOSITORY, Server


def test_load_prints_rates_and_percentiles(tiny_server: Server) -> None:
    words = ["--url", tiny_server.http_url, "--streams", "3", "--seconds", "0.5", "--max_tokens", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    first, ttft, between = done.stdout.splitlines()
    requests, refused, tokens = (
        float(re.search(p, first)[1]) for p in (r"(\d+) requests,", r"(\d+) ref", r"(\d+) tok")
    )
    assert requests >= 3
    assert refused == 0
    assert tokens > 0
    assert re.fullmatch(r"time to first token: p50 \d+ ms, p95 \d+ ms", ttft)
    assert re.fullmatch(r"between tokens: p50 \d+ ms, p95 \d+ ms", between)
