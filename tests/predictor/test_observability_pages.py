"""docs/logs.md and docs/tracing.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

from engine import in_flight
from predictor import logs, request_context, request_log, tracing
from predictor.config import ServerConfig
from predictor.flags import FLAGS
from tests.fake_engine import FakeEngine
from tests.predictor.edge_app import edge_app, infer_message, traceparent
from tests.predictor.oip.conftest import until

REPOSITORY = Path(__file__).parents[2]
LOGS = (REPOSITORY / "docs" / "logs.md").read_text()
TRACING = (REPOSITORY / "docs" / "tracing.md").read_text()


def first_cells(page: str) -> set[str]:
    """Every word that stands as code in the first cell of a row."""
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_flag_of_observability_is_there_with_its_default() -> None:
    flags = {flag.name for flag in FLAGS if flag.name.startswith(("log_", "request_log"))}
    assert {word.removeprefix("--") for word in first_cells(LOGS) if word.startswith("--")} == flags
    assert "--otlp_traces_endpoint" in TRACING
    for name, default in re.findall(r"^\| `--(\w+)` \| `?(\w+)`? \|", LOGS, re.MULTILINE):
        assert str(ServerConfig.__dataclass_fields__[name].default).lower() == default


async def test_every_member_of_a_line_is_there_and_no_other() -> None:
    async with edge_app(FakeEngine(), keeps_prompts=True) as server:
        await server.client.post("/v1/completions", {"prompt": "Hi", "model": "model"}, {"traceparent": traceparent()})
        await server.client.post("/v1/completions", {"prompt": "Hi", "n": 0})
        await server.grpc.call("ModelInfer", infer_message())
        await until(lambda: len(server.ended.requests) == 3)
        for request in server.ended.requests:
            request.span_id = "cd" * 8
        members = {name for request in server.ended.requests for name in request_log.request_fields(request)}
    assert first_cells(LOGS) - {word for word in first_cells(LOGS) if word.startswith("--")} == members


def test_every_attribute_is_there_and_no_other() -> None:
    code = (REPOSITORY / "predictor" / "tracing_attributes.py").read_text()
    pattern = r"(?:gen_ai|http|rpc|url|network|error|pagedserve)\.[\w.]+"
    assert {word for word in first_cells(TRACING) if re.fullmatch(pattern, word)} == set(
        re.findall(rf'"({pattern})"', code)
    )


def test_the_numbers_are_the_codes() -> None:
    assert f"first {request_log.MAX_LOGGED_PROMPT_CHARACTERS} characters" in LOGS
    assert f"{logs.MAX_QUEUED_LINES:,}".replace(",", " ") + " lines may wait" in LOGS
    assert f"1 to {request_context.MAX_REQUEST_ID_LENGTH} visible" in LOGS
    assert f"the first {tracing.MAX_TRACED_PROMPTS}." in TRACING
    assert f"times of the first {in_flight.MAX_PREEMPTION_TIMES}." in TRACING
    assert f"has {tracing.CLOSE_SECONDS:.0f} seconds" in TRACING
