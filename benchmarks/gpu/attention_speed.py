"""Paged attention: decode against a measured copy, prefill against a measured matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import LLAMA_8B, QWEN_05B, Heads, attend, paged_batch
from benchmarks.gpu.results import Reporter, Target

DECODE_TARGET = Target(at_least=0.8)
PREFILL_TARGET = Target(at_least=0.6)
CASE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class _Decode:
    heads: Heads
    batch: int
    num_keys: int
    has_target: bool = False


@dataclass(frozen=True, slots=True)
class _Prefill:
    heads: Heads
    num_seqs: int
    num_tokens: int
    has_target: bool = False


DECODES = (
    _Decode(LLAMA_8B, 32, 2048, has_target=True),
    _Decode(LLAMA_8B, 32, 8192, has_target=True),
    _Decode(LLAMA_8B, 128, 2048, has_target=True),
    _Decode(QWEN_05B, 32, 2048, has_target=True),
    _Decode(QWEN_05B, 256, 2048, has_target=True),
    _Decode(LLAMA_8B, 1, 2048),
    _Decode(LLAMA_8B, 1, 32768),
    _Decode(LLAMA_8B, 8, 8192),
)
PREFILLS = (
    _Prefill(LLAMA_8B, 1, 8192, has_target=True),
    _Prefill(LLAMA_8B, 4, 2048),
    _Prefill(QWEN_05B, 1, 8192),
)
SMOKE_DECODES = (_Decode(Heads(4, 2, 16), 2, 20, has_target=True),)
SMOKE_PREFILLS = (_Prefill(Heads(4, 2, 16), 1, 24, has_target=True),)


def run(device: Device, report: Reporter, budget: Budget) -> None:
    """NOTE: the cases with targets of both kinds come first."""
    cases = [*DECODES[:3], *PREFILLS[:1], *DECODES[3:], *PREFILLS[1:]]
    if device.is_smoke:
        cases = [*SMOKE_DECODES, *SMOKE_PREFILLS]
    for case in cases:
        measure = _decode if isinstance(case, _Decode) else _prefill
        if budget.allows(CASE_SECONDS):
            measure(device, report, case)
        else:
            report.missing(_name(case), "no time left")


def _name(case: _Decode | _Prefill) -> str:
    if isinstance(case, _Decode):
        return f"decode {case.heads}, batch {case.batch}, {case.num_keys} keys"
    return f"prefill {case.heads}, {case.num_seqs} x {case.num_tokens}"


def _decode(device: Device, report: Reporter, case: _Decode) -> None:
    batch = paged_batch(device, case.heads, (1,) * case.batch, (case.num_keys,) * case.batch)
    seconds = device.seconds(lambda: attend(batch), in_graph=True)
    report.speed(
        _name(case),
        case.heads.decode_bytes(case.batch, case.num_keys) / seconds / 1e9,
        "GB/s",
        against=device.copy_rate / 1e9,
        target=DECODE_TARGET if case.has_target else None,
        note=f"{seconds * 1e6:.0f} µs",
    )


def _prefill(device: Device, report: Reporter, case: _Prefill) -> None:
    lengths = (case.num_tokens,) * case.num_seqs
    batch = paged_batch(device, case.heads, lengths, lengths)
    seconds = device.seconds(lambda: attend(batch), repeats=15)
    operations = case.heads.prefill_operations(case.num_seqs, case.num_tokens)
    report.speed(
        _name(case),
        operations / seconds / 1e12,
        "TFLOP/s",
        against=device.matmul_rate / 1e12,
        target=PREFILL_TARGET if case.has_target else None,
        note=f"{seconds * 1e3:.2f} ms",
    )
    dense = [
        device.randn(case.num_seqs, heads, case.num_tokens, case.heads.head_dim, dtype=torch.bfloat16)
        for heads in (case.heads.num_heads,) * 3
    ]
    seconds = device.seconds(lambda: scaled_dot_product_attention(*dense, is_causal=True), repeats=15)
    report.speed(
        f"{_name(case)}: torch's own on dense heads",
        operations / seconds / 1e12,
        "TFLOP/s",
        against=device.matmul_rate / 1e12,
        note=f"{seconds * 1e3:.2f} ms",
    )
