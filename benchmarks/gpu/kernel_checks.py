"""Every kernel against its plain-torch twin, which runs on the CPU in float32 on the same (rounded) inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import LLAMA_8B, QWEN_05B, Heads, paged_batch
from benchmarks.gpu.results import Reporter
from benchmarks.gpu.sampling_rows import GREEDY, MIN_P, PENALTIES, TEMPERATURE, TOP_K_TOP_P, TOP_P, parameter_table
from kernels import kv_write, paged_attention, penalties, rms_norm, rotary, sampling, silu_mul
from kernels.reference import kv_write as kv_write_reference
from kernels.reference import paged_attention as paged_attention_reference
from kernels.reference import penalties as penalties_reference
from kernels.reference import rms_norm as rms_norm_reference
from kernels.reference import rotary as rotary_reference
from kernels.reference import sampling as sampling_reference
from kernels.reference import silu_mul as silu_mul_reference
from kernels.row_parameters import SEEN_IN_PROMPT

BOUNDS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""On ‖actual − expected‖ / ‖expected‖: a few roundings of the dtype. Float32 products in tf32 would show."""
SMOKE_BOUNDS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Triton's interpreter cuts bfloat16 off where devices round."""
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
EPS = 1e-5
ALLOWED_DIFFERENCE = 0.03
"""Share of drawn tokens."""


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors are filled with NaN, so that an element that a kernel leaves out shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖; NaN where any element is."""
    expected = expected.double().cpu()
    return float((actual.double().cpu() - expected).norm() / expected.norm())


def upcast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Copies on the CPU in float32."""
    return [x.to("cpu", torch.float32, copy=True) for x in tensors]


def run(device: Device, report: Reporter, budget: Budget) -> None:
    checks = _Checks(device, report)
    for check in (
        checks.paged_attention,
        checks.rms_norm,
        checks.rotary,
        checks.kv_write,
        checks.silu_mul,
        checks.sampling,
        checks.penalties,
    ):
        if budget.allows(0):
            check()
        else:
            report.missing(check.__name__, "no time left")


@dataclass(frozen=True, slots=True)
class _AttentionCase:
    name: str
    heads: Heads
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    block_size: int = 16
    sliding_window: int | None = None
    soft_cap: float | None = None
    num_splits: int | None = None


_EDGES = (1, 15, 16, 17, 4097)
_DECODES = (1,) * len(_EDGES)
_RAGGED = ((1, 1, 17, 300, 64, 1), (900, 1, 40, 300, 1000, 33))

ATTENTION_CASES = (
    _AttentionCase("decode", LLAMA_8B, _DECODES, _EDGES),
    _AttentionCase("decode, one segment", LLAMA_8B, _DECODES, _EDGES, num_splits=1),
    _AttentionCase("decode, 16 segments", LLAMA_8B, _DECODES, _EDGES, num_splits=16),
    _AttentionCase("decode", QWEN_05B, _DECODES, _EDGES),
    _AttentionCase("decode, fp32", QWEN_05B, _DECODES, _EDGES, dtype=torch.float32),
    _AttentionCase("decode, window 100", LLAMA_8B, _DECODES, _EDGES, sliding_window=100),
    _AttentionCase("decode, soft cap 30", LLAMA_8B, _DECODES, _EDGES, soft_cap=30.0),
    _AttentionCase("decode, blocks of 64", Heads(32, 2, 128), _DECODES, _EDGES, block_size=64),
    _AttentionCase("ragged", LLAMA_8B, *_RAGGED),
    _AttentionCase("ragged", QWEN_05B, *_RAGGED),
    _AttentionCase("ragged, fp32", QWEN_05B, *_RAGGED, dtype=torch.float32),
    _AttentionCase("ragged, fp16", LLAMA_8B, *_RAGGED, dtype=torch.float16),
    _AttentionCase("ragged, window 100", LLAMA_8B, *_RAGGED, sliding_window=100),
    _AttentionCase("ragged, soft cap 30", LLAMA_8B, *_RAGGED, soft_cap=30.0),
    _AttentionCase("ragged, blocks of 32", Heads(8, 8, 80), *_RAGGED, block_size=32),
    _AttentionCase("ragged", Heads(32, 32, 96), *_RAGGED),
    _AttentionCase("ragged", Heads(16, 1, 256), *_RAGGED),
    _AttentionCase("prefill of 2048", LLAMA_8B, (2048,), (2048,)),
)
SMOKE_ATTENTION_CASES = (
    _AttentionCase("decode", Heads(4, 2, 16), (1, 1, 1), (1, 17, 40)),
    _AttentionCase("ragged, fp32", Heads(2, 1, 16), (1, 9), (20, 9), dtype=torch.float32),
)


class _Checks:
    def __init__(self, device: Device, report: Reporter) -> None:
        self._device = device
        self._report = report
        self._bounds = SMOKE_BOUNDS if device.is_smoke else BOUNDS
        self._dtypes = (torch.bfloat16, torch.float32)
        self._num_tokens = 3 if device.is_smoke else 300
        self._heads = (
            (Heads(4, 2, 16),) if device.is_smoke else (LLAMA_8B, QWEN_05B, Heads(8, 8, 80), Heads(32, 32, 96))
        )

    def paged_attention(self) -> None:
        for case in SMOKE_ATTENTION_CASES if self._device.is_smoke else ATTENTION_CASES:
            batch = paged_batch(
                self._device,
                case.heads,
                case.query_lens,
                case.seq_lens,
                block_size=case.block_size,
                dtype=case.dtype,
            )
            scale = case.heads.head_dim**-0.5
            tensors = upcast(batch.q, batch.k_cache, batch.v_cache)
            expected = paged_attention_reference.paged_attention(
                *tensors,
                **{name: tensor.cpu() for name, tensor in batch.tensors.items()},
                scale=scale,
                sliding_window=case.sliding_window,
                soft_cap=case.soft_cap,
            )
            with poisoned():
                actual = paged_attention.paged_attention(
                    batch.q,
                    batch.k_cache,
                    batch.v_cache,
                    **batch.tensors,
                    max_query_len=batch.max_query_len,
                    max_seq_len=batch.max_seq_len,
                    scale=scale,
                    sliding_window=case.sliding_window,
                    soft_cap=case.soft_cap,
                    num_splits=case.num_splits,
                )
            self._check(f"paged_attention {case.heads} {case.name}", actual, expected)

    def rms_norm(self) -> None:
        for size in (65,) if self._device.is_smoke else (65, 896, 4096, 12288):
            for dtype in self._dtypes:
                x, update = (self._randn(self._num_tokens, size, dtype=dtype) for _ in range(2))
                weight = self._randn(size, dtype=dtype)
                with poisoned():
                    actual = rms_norm.rms_norm(x, weight, EPS)
                x_up, update_up, weight_up = upcast(x, update, weight)
                self._check(f"rms_norm {size}", actual, rms_norm_reference.rms_norm(x_up, weight_up, EPS))
                with poisoned():
                    actual = rms_norm.add_rms_norm_(x, update, weight, EPS)
                expected = rms_norm_reference.add_rms_norm_(x_up, update_up, weight_up, EPS)
                self._check(f"add_rms_norm_ {size}", actual, expected)
                self._check(f"add_rms_norm_ {size}, residual", x, x_up)
        for heads in self._heads:
            shape = (heads.num_heads, heads.head_dim)
            x, weight = self._randn(self._num_tokens, *shape, dtype=torch.bfloat16), self._randn(*shape)
            with poisoned():
                actual = rms_norm.head_rms_norm(x, weight, EPS)
            self._check(f"head_rms_norm {heads}", actual, rms_norm_reference.head_rms_norm(*upcast(x, weight), EPS))

    def rotary(self) -> None:
        for heads in self._heads:
            num_rotated = heads.num_heads + heads.num_kv_heads
            for dtype in self._dtypes:
                fused = self._randn(self._num_tokens, num_rotated + heads.num_kv_heads, heads.head_dim, dtype=dtype)
                cos, sin = (x.to(dtype) for x in self._angles(heads.head_dim))
                fused_up, cos_up, sin_up = upcast(fused, cos, sin)
                (fused_alone,) = upcast(fused)
                alone = fused.clone()
                rotary.rotary_(alone[:, :num_rotated], cos, sin)
                rotary_reference.rotary_(fused_alone[:, :num_rotated], cos_up, sin_up)
                self._check(f"rotary_ {heads}", alone, fused_alone)

                caches, slots = self._caches(heads, dtype)
                caches_up = upcast(*caches)
                rotary.rotary_kv_write(fused[:, :num_rotated], fused[:, num_rotated:], cos, sin, *caches, slots)
                rotary_reference.rotary_kv_write(
                    fused_up[:, :num_rotated], fused_up[:, num_rotated:], cos_up, sin_up, *caches_up, slots.cpu()
                )
                self._check(f"rotary_kv_write {heads}, queries", fused, fused_up)
                self._check_cache(f"rotary_kv_write {heads}, keys", caches[0], caches_up[0])
                self._check_cache(f"rotary_kv_write {heads}, values", caches[1], caches_up[1])

    def kv_write(self) -> None:
        for heads in self._heads:
            fused = self._randn(self._num_tokens, 2 * heads.num_kv_heads, heads.head_dim)
            k, v = fused.split(heads.num_kv_heads, 1)
            caches, slots = self._caches(heads, torch.bfloat16)
            expected = upcast(*caches)
            kv_write.kv_write(k, v, *caches, slots)
            kv_write_reference.kv_write(*upcast(k, v), *expected, slots.cpu())
            unequal = sum(
                int((~torch.isclose(a.cpu().float(), e, rtol=0, atol=0, equal_nan=True)).sum())
                for a, e in zip(caches, expected, strict=True)
            )
            self._report.check(f"kv_write {heads}", unequal, 0, unit="elements wrong")

    def silu_mul(self) -> None:
        for inner in (33,) if self._device.is_smoke else (33, 4864, 14336):
            for dtype in self._dtypes:
                gate_up = self._randn(self._num_tokens, 2 * inner, dtype=dtype) * 4
                with poisoned():
                    actual = silu_mul.silu_mul(gate_up)
                self._check(f"silu_mul {inner}", actual, silu_mul_reference.silu_mul(*upcast(gate_up)))

    def sampling(self) -> None:
        kinds = (GREEDY, TEMPERATURE, TOP_K_TOP_P, TOP_P, MIN_P)
        vocab_size, num_rows = (5000, len(kinds)) if self._device.is_smoke else (128256, 16 * len(kinds))
        table = parameter_table([kinds[i % len(kinds)] for i in range(num_rows)])
        logits = self._randn(num_rows, vocab_size, dtype=torch.float32) * 3
        order = torch.randperm(num_rows)
        positions = torch.arange(num_rows) + 100
        expected = sampling_reference.sample_tokens(logits.cpu(), table, order, positions)
        where = self._device.torch_device
        actual = sampling.sample_tokens(logits, table.to(where), order.to(where), positions.to(where))
        # NOTE: logarithms differ in their last bits, and so, rarely, does the best of two keys that lie side by side.
        differ = int((actual.cpu() != expected).sum())
        case = f"sample_tokens, {num_rows} rows of {vocab_size}"
        self._report.check(case, differ / num_rows, ALLOWED_DIFFERENCE, unit="of tokens differ")

    def penalties(self) -> None:
        vocab_size, num_rows = (5000, 3) if self._device.is_smoke else (151936, 64)
        where = self._device.torch_device
        table = parameter_table([(PENALTIES, GREEDY)[i % 2] for i in range(num_rows)])
        counts = torch.randint(-3, 4, (num_rows, vocab_size)).clamp_(min=0).int()
        counts[torch.rand(counts.shape) < 0.2] += SEEN_IN_PROMPT
        logits = self._randn(num_rows, vocab_size, dtype=torch.float32)
        order, token_ids = torch.randperm(num_rows), torch.randint(vocab_size, (num_rows,))
        expected, expected_counts = logits.cpu().clone(), counts.clone()
        penalties_reference.apply_penalties_(expected, counts, table, order)
        penalties_reference.count_tokens_(expected_counts, table, order, token_ids)
        actual_counts, on_device = counts.to(where, copy=True), (table.to(where), order.to(where))
        penalties.apply_penalties_(logits, actual_counts, *on_device)
        penalties.count_tokens_(actual_counts, *on_device, token_ids.to(where))
        self._check("apply_penalties_", logits, expected)
        wrong = int((actual_counts.cpu() != expected_counts).sum())
        self._report.check("count_tokens_", wrong, 0, unit="elements wrong")

    def _randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return self._device.randn(*shape, dtype=dtype)

    def _angles(self, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = 10000.0 ** (torch.arange(0, head_dim, 2) / -head_dim)
        angles = torch.outer(torch.arange(float(self._num_tokens)), frequencies).unsqueeze(1)
        angles = angles.to(self._device.torch_device)
        return torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)

    def _caches(self, heads: Heads, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Two caches of NaN, and a slot for each token but one."""
        num_blocks = self._num_tokens // 8 + 1
        shape = (num_blocks, 16, heads.num_kv_heads, heads.head_dim)
        caches = [torch.full(shape, torch.nan, dtype=dtype, device=self._device.torch_device) for _ in range(2)]
        where, generator = self._device.torch_device, self._device.generator
        slots = torch.randperm(num_blocks * 16, device=where, generator=generator)[: self._num_tokens]
        slots[self._num_tokens // 2] = -1
        return caches, slots

    def _check_cache(self, case: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Slots that the twin left alone must still be NaN, the others as the twin's."""
        written = ~expected.isnan()
        is_same = torch.equal(~actual.cpu().isnan(), written)
        self._check(case if is_same else f"{case}: other slots written", actual.cpu()[written], expected[written])
        if not is_same:
            self._report.failed(case, "slots were written that should not be, or left out")

    def _check(self, case: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        difference = (actual.double().cpu() - expected.double()).abs().max().item()
        name = case if NAMES[actual.dtype] in case else f"{case} {NAMES[actual.dtype]}"
        note = f"largest error {difference:.2g}"
        self._report.check(name, relative_error(actual, expected), self._bounds[actual.dtype], note=note)
