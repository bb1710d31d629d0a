"""Paged attention in plain torch, one sequence after the other."""

from __future__ import annotations

import torch


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """As `kernels.paged_attention.paged_attention`, computed in float32 and returned in q's dtype.

    Rows that belong to no sequence, and rows that see no key, are 0. Only keys that a row sees are touched.
    """
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = q.shape[1] // num_kv_heads
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts = query_starts.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        first, last = starts[index], starts[index + 1]
        positions = torch.arange(seq_len - (last - first), seq_len)
        if last == first or seq_len == 0:
            continue
        blocks = block_tables[index, : (seq_len + block_size - 1) // block_size].long()
        seen = torch.arange(seq_len)[None, :] <= positions[:, None]
        if sliding_window is not None:
            seen &= torch.arange(seq_len)[None, :] > positions[:, None] - sliding_window
        keys, values = (
            cache[blocks].flatten(0, 1)[:seq_len].float().repeat_interleave(group, 1).transpose(0, 1)
            for cache in (k_cache, v_cache)
        )
        used = seen.any(0)[:, None]
        keys, values = keys.masked_fill(~used, 0.0), values.masked_fill(~used, 0.0)
        scores = scale * q[first:last].float().transpose(0, 1) @ keys.transpose(1, 2)
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0)
        out[first:last] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out
