"""Writes new keys and values to their slots of the paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.variant import KernelVariant

TILE = 1024
"""Elements of a program."""


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])
def _kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slot_mapping,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_cache_block_stride,
    k_cache_slot_stride,
    k_cache_head_stride,
    v_cache_block_stride,
    v_cache_slot_stride,
    v_cache_head_stride,
    num_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """HEADS heads of one token a program."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
        lanes = tl.arange(0, LANES)[None, :]
        mask = (heads < num_heads) & (lanes < HEAD_DIM)
        block = slot // BLOCK_SIZE
        place = slot % BLOCK_SIZE
        keys = tl.load(k + token * k_token_stride + heads * k_head_stride + lanes, mask)
        values = tl.load(v + token * v_token_stride + heads * v_head_stride + lanes, mask)
        k_slot = k_cache + block * k_cache_block_stride + place * k_cache_slot_stride
        v_slot = v_cache + block * v_cache_block_stride + place * v_cache_slot_stride
        tl.store(k_slot + heads * k_cache_head_stride + lanes, keys, mask)
        tl.store(v_slot + heads * v_cache_head_stride + lanes, values, mask)


def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Token t goes to slot slot_mapping[t], block_id · block_size + offset; a negative one is skipped.

    k, v: (T, num_kv_heads, head_dim); caches: (num_blocks, block_size, num_kv_heads, head_dim); all of any strides with
    a dense last dimension. slot_mapping: int64 (T), dense; no slot twice.
    """
    num_tokens, num_heads, head_dim = k.shape
    assert v.shape == k.shape
    assert k_cache.shape == v_cache.shape
    assert k_cache.shape[2:] == k.shape[1:]
    assert k.stride(2) == v.stride(2) == k_cache.stride(3) == v_cache.stride(3) == 1
    assert slot_mapping.dtype == torch.int64
    if not num_tokens:
        return
    constants = _constants(k_cache.shape[1], num_heads, head_dim)
    _kv_write_kernel[(num_tokens, triton.cdiv(num_heads, constants["HEADS"]))](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        num_heads,
        **constants,
        num_warps=_num_warps(constants),
    )


def _constants(block_size: int, num_heads: int, head_dim: int) -> dict[str, int]:
    lanes = triton.next_power_of_2(head_dim)
    heads = min(triton.next_power_of_2(num_heads), max(1, TILE // lanes))
    return {"BLOCK_SIZE": block_size, "HEAD_DIM": head_dim, "HEADS": heads, "LANES": lanes}


def _num_warps(constants: dict[str, int]) -> int:
    """16 bytes of a 16-bit type a thread."""
    return min(4, max(1, constants["HEADS"] * constants["LANES"] // 256))


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """The KV heads of Llama 3.1 8B and Qwen2.5 0.5B in bfloat16; with `full` more shapes and dtypes."""
    pointers = ("k", "v", "k_cache", "v_cache")
    parts = ("block", "slot", "head")
    strides = [f"{x}_{part}_stride" for x in ("k", "v") for part in ("token", "head")]
    strides += [f"{x}_cache_{part}_stride" for x in ("k", "v") for part in parts]
    shapes = ((1, 64), (2, 64), (8, 80), (32, 96), (8, 128), (8, 256)) if full else ((2, 64), (8, 128))
    for dtype in ("bf16", "fp16", "fp32") if full else ("bf16",):
        for block_size in (16, 64) if full else (16,):
            for num_heads, head_dim in shapes:
                constants = _constants(block_size, num_heads, head_dim)
                yield KernelVariant(
                    name=f"kv_write[{dtype},{num_heads}x{head_dim},block_size={block_size}]",
                    kernel=_kv_write_kernel,
                    signature={
                        **dict.fromkeys(pointers, f"*{dtype}"),
                        "slot_mapping": "*i64",
                        **dict.fromkeys(strides, "i32"),
                        "num_heads": "i32",
                        **dict.fromkeys(constants, "constexpr"),
                    },
                    constants=constants,
                    num_warps=_num_warps(constants),
                    aligned=frozenset((*pointers, *strides)),
                )
