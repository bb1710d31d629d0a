"""The engine's configuration: frozen, validated once, defaults stated here only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from engine.errors import ConfigError

DTypeName = Literal["auto", "bfloat16", "float16", "float32"]
DeviceName = Literal["auto", "cpu", "cuda"]
AttentionBackendName = Literal["auto", "torch", "triton"]
LoadFormat = Literal["auto", "dummy"]

DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float16", "float32")
DEVICES: tuple[str, ...] = ("auto", "cpu", "cuda")
ATTENTION_BACKENDS: tuple[str, ...] = ("auto", "torch", "triton")
LOAD_FORMATS: tuple[str, ...] = ("auto", "dummy")
MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 1, 256
CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 2048, 8192
"""Tokens in one step unless told otherwise: a GPU needs more of them to be busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What one engine runs and within which bounds. Raises `ConfigError` for a value out of range.

    model_dir: a Hugging Face folder (config.json, safetensors, tokenizer.json), or a `.gguf` file or a folder with one.
    max_model_len: tokens of prompt and output of one sequence; None takes the model's own context length. Clamped,
        with a message, where the KV pool cannot hold one such sequence.
    max_num_seqs: sequences in one step. max_num_batched_tokens: tokens in one step (prefill chunks and decodes); None
        takes 2048 on a CPU and 8192 on a GPU.
    block_size: token slots in a KV block, 1 to 256; with the triton back end a power of two from 8 on.
    num_kv_blocks: usable KV blocks, the dummy block not counted; None measures. kv_cache_memory: bytes for the KV
        pool instead of measuring; not together with num_kv_blocks. memory_utilization: share of the GPU's memory that
        the engine may take, all in all; what others hold is not counted. Where so much is not free it does not start.
        The CPU does not look at it.
    device: auto takes cuda where there is one. attention_backend: torch runs on the CPU, triton on the GPU (and, for
        tests, on the CPU under Triton's interpreter); auto is the device's own.
    cuda_graphs: whether decode steps are recorded at the start and replayed. load_format: dummy fills the model with
        random weights, so that only config.json is needed (to warm up, or to measure speed).
    aging_seconds: waiting this long is worth one priority level, so that no request starves.
    num_threads: CPU threads of the model; None takes every core the process may use.
    overlap: plan and launch the next step while one runs on the device; None does so on a CUDA device.
    """

    model_dir: Path
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory: int | None = None
    memory_utilization: float = 0.9
    dtype: DTypeName = "auto"
    device: DeviceName = "auto"
    attention_backend: AttentionBackendName = "auto"
    cuda_graphs: bool = True
    load_format: LoadFormat = "auto"
    enable_prefix_caching: bool = True
    aging_seconds: float = 10.0
    num_threads: int | None = None
    overlap: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_dir", Path(self.model_dir))
        for name in ("max_model_len", "max_num_batched_tokens", "num_kv_blocks", "kv_cache_memory", "num_threads"):
            if getattr(self, name) is not None:
                _positive_int(name, getattr(self, name))
        for name in ("max_num_seqs", "block_size"):
            _positive_int(name, getattr(self, name))
        if self.num_threads is not None and self.num_threads > (os.cpu_count() or 1):
            raise ConfigError(f"num_threads is {self.num_threads}, and this machine has {os.cpu_count()} CPUs")
        if not MIN_BLOCK_SIZE <= self.block_size <= MAX_BLOCK_SIZE:
            raise ConfigError(f"block_size must be between {MIN_BLOCK_SIZE} and {MAX_BLOCK_SIZE}")
        if self.num_kv_blocks is not None and self.kv_cache_memory is not None:
            raise ConfigError("give num_kv_blocks or kv_cache_memory, not both")
        for name, choices in (
            ("dtype", DTYPES),
            ("device", DEVICES),
            ("attention_backend", ATTENTION_BACKENDS),
            ("load_format", LOAD_FORMATS),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, kinds in (("enable_prefix_caching", bool), ("cuda_graphs", bool), ("overlap", bool | None)):
            if not isinstance(getattr(self, name), kinds):
                raise ConfigError(f"{name} must be true or false")
        if not _is_number(self.memory_utilization) or not 0 < self.memory_utilization <= 1:
            raise ConfigError(f"memory_utilization must be above 0 and at most 1, got {self.memory_utilization!r}")
        if not _is_number(self.aging_seconds) or not self.aging_seconds > 0:
            raise ConfigError(f"aging_seconds must be a number greater than 0, got {self.aging_seconds!r}")

    @property
    def step_tokens(self) -> int:
        """`max_num_batched_tokens`, or the default of the device."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return GPU_BATCHED_TOKENS if self.device == "cuda" else CPU_BATCHED_TOKENS

    @classmethod
    def from_kwargs(cls, also_known: Iterable[str] = (), /, **kwargs: Any) -> EngineConfig:
        """An `EngineConfig` from keyword arguments; an unknown name is a `ConfigError` that lists the known ones.

        also_known: further names that the caller takes and that the list is to have.
        """
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(kwargs) - known):
            names = ", ".join(sorted(known.union(also_known)))
            raise ConfigError(f"unknown argument {', '.join(unknown)}; known are {names}")
        return cls(**kwargs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
