"""Writes new keys and values to their slots of the paged cache, in plain torch."""

from __future__ import annotations

import torch


def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Token t goes to slot slot_mapping[t]; a negative one is skipped.

    k, v: (T, num_kv_heads, head_dim). caches: (num_blocks, block_size, num_kv_heads, head_dim).
    slot_mapping: int64 (T).
    """
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, places = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[blocks, places] = k[kept]
    v_cache[blocks, places] = v[kept]
