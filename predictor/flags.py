"""The table of command-line flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import (
    ATTENTION_BACKENDS,
    CPU_BATCHED_TOKENS,
    DEVICES,
    DTYPES,
    GPU_BATCHED_TOKENS,
    LOAD_FORMATS,
)
from engine.metrics_aliases import METRICS_ALIASES
from predictor.config import LOG_FORMATS

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag `--name`, and the field of `EngineConfig` or `ServerConfig` of the same name.

    alias: another name of the flag and of its environment variable, the one that users of other servers know.
    """

    group: str
    name: str
    parse: Callable[[str], Any]
    text: str
    metavar: str
    is_list: bool = False
    alias: str | None = None


def parse_bool(text: str) -> bool:
    """true/false, yes/no, on/off, 1/0. Raises `ValueError`."""
    match text.strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("must be true or false")


def parse_size(text: str) -> int:
    """Bytes: a whole number, or one with a unit as in 4GiB, 512Mi or 2GB. Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a number of bytes, such as 4GiB, 512MiB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_integer(text: str) -> int:
    """Raises `ValueError`."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def parse_seconds(text: str) -> float:
    """Raises `ValueError`."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None


def parse_share(text: str) -> float:
    """Raises `ValueError`."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number such as 0.9") from None


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return parse


FLAGS: tuple[Flag, ...] = (
    Flag(
        "model",
        "model_dir",
        str,
        "a Hugging Face folder (config.json, safetensors, tokenizer.json), a .gguf file, or a folder with one",
        "PATH",
    ),
    Flag("model", "model_name", str, "name on the OIP paths; no slash", "NAME"),
    Flag(
        "model", "served_model_aliases", str, "further names accepted in an OpenAI body's model", "NAME", is_list=True
    ),
    Flag("model", "dtype", _one_of(DTYPES), f"type of the weights: {', '.join(DTYPES)}", "TYPE"),
    Flag("model", "device", _one_of(DEVICES), f"where the model runs: {', '.join(DEVICES)}", "DEVICE"),
    Flag(
        "model",
        "attention_backend",
        _one_of(ATTENTION_BACKENDS),
        f"what computes attention: {', '.join(ATTENTION_BACKENDS)}; auto is the device's own",
        "BACKEND",
    ),
    Flag("model", "cuda_graphs", parse_bool, "record decode steps at the start and replay them (GPU)", "BOOL"),
    Flag("model", "overlap", parse_bool, "prepare the next step while one runs on the device", "BOOL"),
    Flag(
        "model",
        "load_format",
        _one_of(LOAD_FORMATS),
        "auto reads the weights; dummy makes random ones from config.json, to warm up or to measure",
        "FORMAT",
    ),
    Flag("model", "num_threads", parse_integer, "CPU threads of the model", "N"),
    Flag("server", "http_port", parse_integer, "port of REST; 0 lets the system choose", "PORT"),
    Flag("server", "grpc_port", parse_integer, "port of gRPC; 0 lets the system choose", "PORT"),
    Flag("server", "grpc_max_message_length", parse_size, "largest gRPC message, in and out", "SIZE"),
    Flag("server", "max_body_size", parse_size, "largest REST body; a larger one is answered 413", "SIZE"),
    Flag(
        "server",
        "max_stream_buffer",
        parse_integer,
        "tokens that may wait for the reader of one stream; with more the request is aborted",
        "N",
    ),
    Flag("server", "drain_timeout", parse_seconds, "seconds that running requests get at SIGTERM", "SECONDS"),
    Flag(
        "server",
        "stall_timeout",
        parse_seconds,
        "seconds without a step, while there is work, after which the server is not live",
        "SECONDS",
    ),
    Flag("observability", "log_format", _one_of(LOG_FORMATS), "form of the log lines: text or json", "FORMAT"),
    Flag("observability", "request_log", parse_bool, "a log line for each request", "BOOL"),
    Flag(
        "observability",
        "request_log_rate",
        parse_integer,
        "such lines in a second; further requests are counted in one line a second",
        "N",
    ),
    Flag("observability", "log_prompts", parse_bool, "show the beginning of each prompt in its line", "BOOL"),
    Flag(
        "observability",
        "otlp_traces_endpoint",
        str,
        "URL of an OpenTelemetry collector that gets traces (OTLP; needs the extra tracing)",
        "URL",
    ),
    Flag(
        "observability",
        "metrics_aliases",
        _one_of(tuple(METRICS_ALIASES)),
        f"whose names the metrics have as well: {', '.join(METRICS_ALIASES)}",
        "NAMES",
    ),
    Flag("security", "ssl_certfile", Path, "PEM certificate chain of REST and gRPC", "PATH"),
    Flag("security", "ssl_keyfile", Path, "PEM private key of the certificate", "PATH"),
    Flag("security", "ssl_client_ca", Path, "PEM certificates that sign clients' own: asks clients for one", "PATH"),
    Flag(
        "security",
        "api_key",
        str,
        "keys, with commas or apart, of which every client must send one; ps shows them: better by variable or file",
        "KEY",
        is_list=True,
    ),
    Flag("security", "api_key_file", Path, "file of further keys, one a line; read anew when it changes", "PATH"),
    Flag("admission", "max_waiting_requests", parse_integer, "sequences that may wait; more are answered 429", "N"),
    Flag("admission", "max_waiting_tokens", parse_integer, "prompt tokens that may wait; more are answered 429", "N"),
    Flag("batch", "max_model_len", parse_integer, "tokens of prompt and output of one sequence", "N"),
    Flag("batch", "max_num_seqs", parse_integer, "sequences in one step", "N"),
    Flag("batch", "max_num_batched_tokens", parse_integer, "tokens in one step", "N"),
    Flag("batch", "aging_seconds", parse_seconds, "waiting this long is worth one priority level", "SECONDS"),
    Flag(
        "KV cache",
        "block_size",
        parse_integer,
        "token slots in a KV block, 1 to 256; on a GPU a power of two from 8 on",
        "N",
    ),
    Flag("KV cache", "num_kv_blocks", parse_integer, "KV blocks, instead of measuring free memory", "N"),
    Flag("KV cache", "kv_cache_memory", parse_size, "memory of the KV cache, instead of measuring", "SIZE"),
    Flag(
        "KV cache",
        "memory_utilization",
        parse_share,
        "share of the GPU's memory that the engine may take, others' not counted",
        "SHARE",
        alias="gpu_memory_utilization",
    ),
    Flag("KV cache", "enable_prefix_caching", parse_bool, "share the KV blocks of equal prefixes", "BOOL"),
)

UNSET_DEFAULTS = {
    "model_dir": "the demonstration model",
    "model_name": "the folder's name, or model",
    "served_model_aliases": "none",
    "num_threads": "every core",
    "ssl_certfile": "none, not encrypted",
    "ssl_keyfile": "none",
    "ssl_client_ca": "none",
    "api_key": "none, open to everybody",
    "api_key_file": "none",
    "otlp_traces_endpoint": "none, no traces",
    "max_waiting_tokens": "no bound",
    "max_model_len": "the model's own",
    "max_num_batched_tokens": f"{CPU_BATCHED_TOKENS} on a CPU, {GPU_BATCHED_TOKENS} on a GPU",
    "overlap": "true on a GPU, false on a CPU",
    "num_kv_blocks": "measured",
    "kv_cache_memory": "measured",
}
"""How the help text words a default that is not a value."""
