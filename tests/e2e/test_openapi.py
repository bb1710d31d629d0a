"""Schemathesis on our OpenAPI document, against the real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.e2e.server import REPOSITORY, Server, until

RUN_SECONDS = 600
CHECKS = (
    "only_promised_server_errors",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
TWINS = "/versions/|^/openai/"
"""Paths whose handlers stand under a shorter path too."""


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    """A short context, as schemathesis likes requests without a bound of tokens."""
    with Server(
        model_dir=tiny_model,
        dtype="float32",
        num_threads=1,
        num_kv_blocks=256,
        max_model_len=64,
        served_model_aliases="org/tiny",
    ) as server:
        yield server


def run(server: Server, folder: Path, *options: str) -> int:
    """Runs schemathesis; returns the number of cases. Fails with its report where it finds anything."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.http_url}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure"]
    command += ["--seed", "1", "--generation-database", "none", "--warnings", "off", "--no-color"]
    command += ["--request-timeout", "60", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "SCHEMATHESIS_HOOKS": "tests.e2e.schemathesis_hooks",
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


def test_the_live_document_is_valid_openapi(server: Server) -> None:
    document = httpx.get(f"{server.http_url}/openapi.json", timeout=60).json()
    OpenAPIV31SpecValidator(document).validate()
    name = httpx.get(f"{server.http_url}/v2/models", timeout=60).json()["models"][0]
    schema = document["paths"]["/v1/models/{name}"]["parameters"][0]["schema"]
    assert schema["enum"] == [name, "org/tiny"]


def test_schemathesis_finds_no_server_error_and_no_schema_violation(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path, "--max-examples", "10", "--exclude-path-regex", TWINS) > 1000
    # NOTE: what generates must have been reached behind the validation, and often.
    assert server.metric("requests_total", finish_reason="length") > 150
    until(lambda: server.metric("requests_running") == 0, "no request to run")
    assert server.status("/v2/health/ready") == 200


@pytest.mark.full
def test_schemathesis_with_many_examples(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path, "--max-examples", "300") > 5000
    assert server.status("/v2/health/ready") == 200
