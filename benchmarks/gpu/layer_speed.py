"""Matrix products, norms, rotary positions, activation and sampling: their time against their bytes or operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import LLAMA_8B, Heads
from benchmarks.gpu.results import Reporter
from benchmarks.gpu.sampling_rows import GREEDY, PENALTIES, TEMPERATURE, TOP_K_TOP_P, parameter_table
from kernels.kv_write import kv_write
from kernels.penalties import apply_penalties_
from kernels.rms_norm import add_rms_norm_, head_rms_norm
from kernels.rotary import rotary_kv_write
from kernels.row_parameters import Column
from kernels.sampling import SamplingWorkspace, sample_tokens
from kernels.silu_mul import silu_mul

DTYPE = torch.bfloat16
CASE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of one model."""

    hidden: int
    inner: int
    heads: Heads
    vocab_size: int

    @property
    def qkv_rows(self) -> int:
        return (self.heads.num_heads + 2 * self.heads.num_kv_heads) * self.heads.head_dim


LLAMA = _Shape(4096, 14336, LLAMA_8B, 128256)
SMOKE = _Shape(32, 48, Heads(4, 2, 8), 5000)


def run(device: Device, report: Reporter, budget: Budget) -> None:
    layers = _Layers(device, report, SMOKE if device.is_smoke else LLAMA)
    layers.nothing()
    for num_tokens in (3,) if device.is_smoke else (32, 8192):
        for measure in (layers.matmuls, layers.norms, layers.rotary, layers.activation):
            if budget.allows(CASE_SECONDS):
                measure(num_tokens)
            else:
                report.missing(f"{measure.__name__}, {num_tokens} tokens", "no time left")
    for num_rows in (2,) if device.is_smoke else (1, 32, 256):
        if budget.allows(CASE_SECONDS):
            layers.sampling(num_rows)
        else:
            report.missing(f"sampling, {num_rows} rows", "no time left")


class _Layers:
    def __init__(self, device: Device, report: Reporter, shape: _Shape) -> None:
        self._device = device
        self._report = report
        self._shape = shape

    def nothing(self) -> None:
        """What is part of every other time."""
        one = self._randn(1)
        self._report.speed("one kernel of one element", self._device.seconds(one.zero_, in_graph=True) * 1e6, "µs")

    def matmuls(self, num_tokens: int) -> None:
        """torch's own; few tokens are held against the bytes of the weight, many against the large product's rate."""
        shape = self._shape
        for name, rows, columns in (
            ("qkv", shape.qkv_rows, shape.hidden),
            ("gate_up", 2 * shape.inner, shape.hidden),
            ("down", shape.hidden, shape.inner),
        ):
            weight, x = self._randn(rows, columns), self._randn(num_tokens, columns)
            case = f"linear {name} {rows}x{columns}, {num_tokens} tokens"
            if num_tokens <= 64:
                num_bytes = 2 * (weight.numel() + x.numel() + num_tokens * rows)
                self._bytes(case, num_bytes, lambda weight=weight, x=x: functional.linear(x, weight))
                continue
            seconds = self._device.seconds(lambda weight=weight, x=x: functional.linear(x, weight), repeats=15)
            rate, ceiling = 2 * num_tokens * rows * columns / seconds, self._device.matmul_rate
            note = f"{seconds * 1e6:.0f} µs"
            self._report.speed(case, rate / 1e12, "TFLOP/s", against=ceiling / 1e12, note=note)

    def norms(self, num_tokens: int) -> None:
        shape, heads = self._shape, self._shape.heads
        residual, update = (self._randn(num_tokens, shape.hidden) for _ in range(2))
        weight = self._randn(shape.hidden)
        self._bytes(
            f"add_rms_norm_ {shape.hidden}, {num_tokens} tokens",
            4 * 2 * residual.numel(),
            lambda: add_rms_norm_(residual, update, weight, 1e-5),
        )
        x = self._randn(num_tokens, heads.num_heads + heads.num_kv_heads, heads.head_dim)
        head_weight = self._randn(*x.shape[1:])
        self._bytes(
            f"head_rms_norm {heads}, {num_tokens} tokens",
            2 * 2 * x.numel(),
            lambda: head_rms_norm(x, head_weight, 1e-5),
        )

    def rotary(self, num_tokens: int) -> None:
        heads = self._shape.heads
        num_rotated = heads.num_heads + heads.num_kv_heads
        fused = self._randn(num_tokens, num_rotated + heads.num_kv_heads, heads.head_dim)
        cos, sin = (self._randn(num_tokens, 1, heads.head_dim) for _ in range(2))
        num_blocks = num_tokens // 16 + 1
        caches = [self._randn(num_blocks, 16, heads.num_kv_heads, heads.head_dim) for _ in range(2)]
        where, generator = self._device.torch_device, self._device.generator
        slots = torch.randperm(num_blocks * 16, device=where, generator=generator)[:num_tokens]
        self._bytes(
            f"rotary_kv_write {heads}, {num_tokens} tokens",
            2 * 2 * (fused.numel() + cos.numel()),
            lambda: rotary_kv_write(fused[:, :num_rotated], fused[:, num_rotated:], cos, sin, *caches, slots),
        )
        k, v = fused[:, heads.num_heads : num_rotated], fused[:, num_rotated:]
        self._bytes(
            f"kv_write {heads}, {num_tokens} tokens",
            2 * 2 * (k.numel() + v.numel()),
            lambda: kv_write(k, v, *caches, slots),
        )

    def activation(self, num_tokens: int) -> None:
        gate_up = self._randn(num_tokens, 2 * self._shape.inner)
        case = f"silu_mul {self._shape.inner}, {num_tokens} tokens"
        self._bytes(case, 3 * gate_up.numel(), lambda: silu_mul(gate_up))

    def sampling(self, num_rows: int) -> None:
        """Held against reading the logits once."""
        where, vocab_size = self._device.torch_device, self._shape.vocab_size
        logits = self._device.randn(num_rows, vocab_size, dtype=torch.float32) * 3
        workspace = SamplingWorkspace(num_rows, vocab_size, where)
        rows = torch.arange(num_rows, device=where)
        positions = rows + 100
        for name, kind in (("greedy", GREEDY), ("temperature", TEMPERATURE), ("top-k 50, top-p 0.95", TOP_K_TOP_P)):
            table = parameter_table([kind] * num_rows).to(where)

            def sample(table: torch.Tensor = table, kind: Mapping[Column, float] = kind) -> torch.Tensor:
                return sample_tokens(
                    logits,
                    table,
                    rows,
                    positions,
                    has_draws=kind is TEMPERATURE,
                    has_borders=kind is TOP_K_TOP_P,
                    workspace=workspace,
                )

            self._bytes(f"sample_tokens {vocab_size}, {num_rows} rows, {name}", 4 * logits.numel(), sample)
        counts = torch.zeros(num_rows, vocab_size, dtype=torch.int32, device=where)
        table = parameter_table([PENALTIES] * num_rows).to(where)
        self._bytes(
            f"apply_penalties_ {vocab_size}, {num_rows} rows, none seen",
            4 * counts.numel(),
            lambda: apply_penalties_(logits, counts, table, rows),
        )

    def _bytes(self, case: str, num_bytes: int, call: Callable[[], object]) -> None:
        """Time, and what moving these bytes takes at the rate of a large copy."""
        seconds = self._device.seconds(call, in_graph=True)
        least = num_bytes / self._device.copy_rate
        self._report.speed(case, seconds * 1e6, "µs", against=least * 1e6, note=f"{num_bytes / 1e6:.3g} MB")

    def _randn(self, *shape: int) -> torch.Tensor:
        return self._device.randn(*shape, dtype=DTYPE)
