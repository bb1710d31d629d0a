"""The server's configuration: frozen, validated once, defaults stated here and in `EngineConfig` only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.metrics_aliases import METRICS_ALIASES
from engine.streams import MAX_STREAM_BUFFER
from predictor.api_keys import check_keys

MAX_PORT = 65535
LOG_FORMATS = ("text", "json")
_URL = re.compile(r"https?://([^/\s@]*@)?(\[[\da-fA-F:.]+\]|[^/\s:@\[\]]+)(:\d+)?(/\S*)?")
MAX_BODY_SIZE = 16 * 1024 * 1024
"""Bytes of one REST body, unless `--max_body_size` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One server: an engine and how it is reached. Raises `ConfigError` for a value out of range.

    model_name: name on the OIP paths, without a slash. served_model_aliases: further names for OpenAI bodies.
    http_port, grpc_port: 0 lets the system choose.
    grpc_max_message_length: bytes of one gRPC message, in and out. max_body_size: bytes of one REST body.
    max_stream_buffer: tokens that may wait for the reader of one stream.
    ssl_certfile, ssl_keyfile: PEM certificate chain and key of REST and gRPC; without them neither is encrypted.
    ssl_client_ca: PEM certificates of which one must have signed the client's (mutual TLS).
    api_key: keys of which every client must present one, together with those in api_key_file; none lets everybody in.
    max_waiting_requests: sequences that may wait for a place in the batch; max_waiting_tokens: their prompt tokens.
    drain_timeout: seconds that running requests get to finish at SIGTERM.
    log_format: "text" or "json". request_log: whether each request has a line; request_log_rate: such lines in a second
    at most. log_prompts: whether they show the beginning of the prompt.
    otlp_traces_endpoint: URL of the collector that traces go to; without it there are none.
    stall_timeout: seconds without a step, while there is work, after which the server is no longer live.
    metrics_aliases: a key of `METRICS_ALIASES`, whose names the metrics have as well.
    """

    engine: EngineConfig
    model_name: str = "model"
    served_model_aliases: tuple[str, ...] = ()
    http_port: int = 8080
    grpc_port: int = 8081
    grpc_max_message_length: int = 8 * 1024 * 1024
    max_body_size: int = MAX_BODY_SIZE
    max_stream_buffer: int = MAX_STREAM_BUFFER
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_client_ca: Path | None = None
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    max_waiting_requests: int = 512
    max_waiting_tokens: int | None = None
    log_format: str = "text"
    request_log: bool = True
    request_log_rate: int = 100
    log_prompts: bool = False
    otlp_traces_endpoint: str | None = None
    drain_timeout: float = 30.0
    stall_timeout: float = 120.0
    metrics_aliases: str = "none"

    def __post_init__(self) -> None:
        _check_name("model_name", self.model_name)
        if "/" in self.model_name:
            # NOTE: OIP's paths carry the name in one segment, which a slash would split.
            raise ConfigError(
                f"model_name {self.model_name!r} holds a slash, which no Open Inference Protocol path can carry; "
                "choose a name without one, and add this one with --served_model_aliases for OpenAI clients"
            )
        for alias in self.served_model_aliases:
            _check_name("served_model_aliases", alias)
        for name in ("http_port", "grpc_port"):
            _check_integer(name, getattr(self, name), 0, MAX_PORT)
        if self.http_port == self.grpc_port != 0:
            raise ConfigError(f"http_port and grpc_port must differ, both are {self.http_port}")
        _check_integer("grpc_max_message_length", self.grpc_max_message_length, 1024, 2**31 - 1)
        _check_integer("max_body_size", self.max_body_size, 1024, None)
        _check_integer("max_stream_buffer", self.max_stream_buffer, 1, None)
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            given, other = (
                ("ssl_certfile", "ssl_keyfile") if self.ssl_keyfile is None else ("ssl_keyfile", "ssl_certfile")
            )
            raise ConfigError(f"{given} needs {other} beside it")
        if self.ssl_client_ca is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_client_ca needs ssl_certfile and ssl_keyfile beside it")
        check_keys(self.api_key)
        _check_integer("max_waiting_requests", self.max_waiting_requests, 1, None)
        if self.max_waiting_tokens is not None:
            _check_integer("max_waiting_tokens", self.max_waiting_tokens, 1, None)
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"log_format must be one of {', '.join(LOG_FORMATS)}, got {self.log_format!r}")
        _check_integer("request_log_rate", self.request_log_rate, 0, None)
        if self.otlp_traces_endpoint is not None and not _URL.fullmatch(self.otlp_traces_endpoint):
            raise ConfigError(
                f"otlp_traces_endpoint must be a URL such as http://collector:4317, got {self.otlp_traces_endpoint!r}"
            )
        if not 0 <= self.drain_timeout < float("inf"):
            raise ConfigError(f"drain_timeout must be 0 or more seconds, got {self.drain_timeout}")
        if not 0 < self.stall_timeout < float("inf"):
            raise ConfigError(f"stall_timeout must be more than 0 seconds, got {self.stall_timeout}")
        if self.metrics_aliases not in METRICS_ALIASES:
            raise ConfigError(
                f"metrics_aliases must be one of {', '.join(METRICS_ALIASES)}, got {self.metrics_aliases!r}"
            )


def _check_name(name: str, value: str) -> None:
    if not value or value != value.strip() or not value.isprintable():
        raise ConfigError(f"{name} must hold non-empty names without surrounding blanks, got {value!r}")


def _check_integer(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name} must be a whole number {bound}, got {value!r}")
