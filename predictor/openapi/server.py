"""The server's own paths: health, version, metrics and this document."""

from __future__ import annotations

from predictor.openapi.build import BOOLEAN, INTEGER, STRING, Part, Schema, answer, record, ref


def server_part() -> Part:
    """`/`, `/health`, `/v2/health/*`, `/version`, `/metrics`, `/openapi.json`."""
    progress = record(
        {"phase": STRING, "done": INTEGER, "total": INTEGER}, ("phase", "done", "total"), "Of loading the model."
    )
    schemas = {
        "Error": record({"error": STRING}, ("error",), "The error of every path but OpenAI's."),
        "Alive": record({"status": {"type": "string", "enum": ["alive", "dead"]}}, ("status",)),
        "Live": record({"live": BOOLEAN}, ("live",)),
        "Ready": record({"ready": BOOLEAN, "live": BOOLEAN, "progress": progress}, ("ready", "live")),
        "Version": record({"version": STRING}, ("version",)),
    }
    ready = "Whether the model is loaded and the engine takes requests."
    return Part(
        paths={
            "/": _get("alive", "Whether the server is alive (KServe's V1 protocol)", _probe("Alive")),
            "/health": _get("health", f"{ready} The same as /v2/health/ready", _probe("Ready")),
            "/v2/health/live": _get("live", "Whether the engine is alive and, with work, moves on", _probe("Live")),
            "/v2/health/ready": _get("ready", ready, _probe("Ready")),
            "/version": _get("version", "The server's version", {"200": answer("The version.", ref("Version"))}),
            "/metrics": {"get": _metrics()},
            "/openapi.json": _get("openapi", "This document", {"200": answer("OpenAPI 3.1.", {"type": "object"})}),
        },
        schemas=schemas,
    )


def _get(operation_id: str, summary: str, responses: Schema) -> Schema:
    return {"get": {"operationId": operation_id, "tags": ["Server"], "summary": summary, "responses": responses}}


def _probe(name: str) -> Schema:
    return {"200": answer("Yes.", ref(name)), "503": answer("No.", ref(name))}


def _metrics() -> Schema:
    text = {"text/plain": {"schema": STRING}, "application/openmetrics-text": {"schema": STRING}}
    return {
        "operationId": "metrics",
        "tags": ["Server"],
        "summary": "Metrics of the server and its engine, in the format that Accept asks for",
        "responses": {"200": {"description": "Prometheus' text format, or OpenMetrics.", "content": text}},
    }
