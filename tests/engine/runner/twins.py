"""The device runner with the plain-torch twins of all kernels: fast enough for whole conversations.

What stays the product's own: the runner, rows, staging, graphs, `TritonBackend`, `DeviceSampler`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.layers import triton_attention, triton_backend, triton_norm
from engine.sampling import device_sampler
from kernels.reference import kv_write, paged_attention, penalties, rms_norm, rotary, sampling, silu_mul


def attention(
    q: torch.Tensor,
    *args: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_splits: int | None,
    out: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    """The twin, behind the promises that the kernel is given."""
    starts, seq_lens, tables = kwargs["query_starts"], kwargs["seq_lens"], kwargs["block_tables"]
    assert starts.dtype == seq_lens.dtype == tables.dtype == torch.int32
    assert int(starts[-1]) == len(q)
    assert int(starts.diff().max()) <= max_query_len
    assert int(seq_lens.max()) <= max_seq_len
    assert tables.stride(0) % 16 == 0
    # NOTE: of lengths and starts the kernel takes any alignment.
    for tensor in (q, out, *args, tables):
        assert tensor.data_ptr() % 16 == 0
    return out.copy_(paged_attention.paged_attention(q, *args, **kwargs))


def sample(
    logits: torch.Tensor,
    parameters: torch.Tensor,
    row_indices: torch.Tensor,
    positions: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    return sampling.sample_tokens(logits, parameters, row_indices, positions)


def use_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the twins in the kernels' place."""
    monkeypatch.setattr(triton_attention, "paged_attention", attention)
    monkeypatch.setattr(triton_attention, "rotary_", rotary.rotary_)
    monkeypatch.setattr(triton_attention, "rotary_kv_write", rotary.rotary_kv_write)
    monkeypatch.setattr(triton_attention, "kv_write", kv_write.kv_write)
    for name in ("rms_norm", "add_rms_norm_", "head_rms_norm"):
        monkeypatch.setattr(triton_norm, name, getattr(rms_norm, name))
    monkeypatch.setattr(triton_backend, "silu_mul", silu_mul.silu_mul)
    monkeypatch.setattr(device_sampler, "sample_tokens", sample)
    monkeypatch.setattr(device_sampler, "apply_penalties_", penalties.apply_penalties_)
    monkeypatch.setattr(device_sampler, "count_tokens_", penalties.count_tokens_)
