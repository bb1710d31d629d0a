"""Rotary position embedding (RoFormer, arXiv:2104.09864), alone and with the KV write, in plain torch."""

from __future__ import annotations

import torch

from kernels.reference.kv_write import kv_write


def rotary_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates x, (T, heads, head_dim), in place, and returns it. cos, sin: (T, 1, head_dim)."""
    num_tokens, num_heads, head_dim = x.shape
    swapped = x.unflatten(2, (2, head_dim // 2)).flip(2).reshape(num_tokens, num_heads, head_dim)
    return x.mul_(cos).addcmul_(swapped, sin)


def rotary_kv_write(
    qk: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Rotates the query heads of qk in place, and writes the rotated keys, and the values, to their slots.

    qk: (T, num_heads + num_kv_heads, head_dim), its key heads left as they are; v: (T, num_kv_heads, head_dim).
    """
    num_heads = qk.shape[1] - v.shape[1]
    rotary_(qk[:, :num_heads], cos, sin)
    kv_write(rotary_(qk[:, num_heads:].clone(), cos, sin), v, k_cache, v_cache, slot_mapping)
